"""Commands along the path a second time, stopped, or with other options."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from shell import CHECKPOINT, EVAL, Shell


def test_explain(here: Shell) -> None:
    args = ("train", "run.toml", "-o", "new", "--explain", "--set", "optim.lr=0.5", "--steps", "7")
    found = json.loads(here(*args, "--json").out)
    assert found["optim.lr"] == {"value": 0.5, "origin": "--set"}
    assert found["train.steps"] == {"value": 7, "origin": "--set"}
    assert found["model.hidden_size"]["value"] == 16
    assert found["model.hidden_size"]["origin"].startswith("run.toml:")
    assert found["optim.betas"] == {"value": [0.9, 0.95], "origin": "default"}
    rows = [line.split("\t") for line in here(*args).out.splitlines()]
    assert rows[0] == ["#key", "value", "from"] and ["optim.lr", "0.5", "--set"] in rows
    assert not Path("new").exists()


def test_a_finished_run_is_left_as_it_is(here: Shell) -> None:
    before = {p: p.read_bytes() for p in Path("runs/phage/checkpoints").rglob("*") if p.is_file()}
    said = here("train", "run.toml", "-o", "runs/phage", "--json")
    assert said.code == 0
    assert "nothing to do: runs/phage has all of its 3 steps" in said.err
    assert json.loads(said.out) | {"resumed": True} == json.loads(said.out)
    assert before == {p: p.read_bytes() for p in Path("runs/phage/checkpoints").rglob("*") if p.is_file()}


def test_fresh_trains_again(here: Shell) -> None:
    weights = Path(CHECKPOINT, "model.safetensors")
    before, inode = weights.read_bytes(), weights.stat().st_ino
    Path("runs/phage/train.log").write_text("of another day\n")
    Path("runs/phage/notes.txt").write_text("mine")
    said = here("train", "run.toml", "-o", "runs/phage", "--fresh", "--json")
    assert said.code == 0 and json.loads(said.out)["resumed"] is False
    assert weights.read_bytes() == before and weights.stat().st_ino != inode
    log = Path("runs/phage/train.log").read_text()
    assert "of another day" not in log and "done: step 3" in log
    assert Path("runs/phage/notes.txt").read_text() == "mine"


def test_max_time_stops_and_the_same_command_goes_on(here: Shell) -> None:
    said = here("train", "run.toml", "-o", "new", "--max-time", "0.000001s", "--json")
    assert said.code == 75 and said.out == ""
    assert "stopped by the time limit after step 0 of 3" in said.err and "the same command" in said.err
    assert here("train", "run.toml", "-o", "new", "--max-time", "2h").code == 0
    weights = "checkpoints/step-000003/model.safetensors"
    assert Path("new", weights).read_bytes() == Path("runs/phage", weights).read_bytes()


def test_ctrl_c_in_eval(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("genoctx.cli.progress.Progress.advance", interrupt)
    said = here(*EVAL, "-o", "new")
    assert (said.code, said.out) == (130, "") and said.err.splitlines()[-1] == "interrupted"
    assert not Path("new/ledger.npz").exists()


def test_a_full_disk_in_eval(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: str | bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("genoctx.files.write_atomic", full)
    here.refuses(
        *EVAL, "-o", "new", code=1, what="no space left on the device while writing new/", hint="free some"
    )


def test_eval_replaces_nothing_unless_told(here: Shell) -> None:
    before = Path("scored/ledger.npz").read_bytes()
    here.refuses(*EVAL, "-o", "scored", what="scored/ledger.npz exists", hint="--force")
    assert Path("scored/ledger.npz").read_bytes() == before
    assert here(*EVAL, "-o", "scored", "--limit", "1", "--force").code == 0
    assert Path("scored/ledger.npz").read_bytes() != before
    here.refuses(*EVAL, "-o", "run.toml", what="run.toml is a file", hint="directory")


def test_fail_above(here: Shell) -> None:
    assert here(*EVAL, "-o", "a", "--limit", "1", "--fail-above", "9").code == 0
    said = here(*EVAL, "-o", "b", "--limit", "1", "--fail-above", "0.5", "--json")
    assert said.code == 3
    assert "exceed --fail-above 0.5" in said.err and json.loads(said.out)["bits_acgt"] > 0.5
    assert Path("b/ledger.npz").exists()
    said = here(*EVAL, "-o", "c", "--fail-above", "nan")
    assert said.code == 2 and "is no limit" in said.err and not Path("c").exists()


def test_eval_takes_a_checkpoint_of_any_name(here: Shell) -> None:
    Path(CHECKPOINT).rename("step-best")
    said = here("eval", "step-best", "--windows", "phage.bed", "-o", "new", "--limit", "1")
    assert said.code == 0, said.err
    assert "held-out loss at step 0" in said.err  # its name does not tell


def test_eval_from_another_folder_needs_the_store(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names its store as it was typed."""
    monkeypatch.chdir(here.folder / "runs")
    args = ("eval", "phage", "--windows", "../phage.bed", "-o", "new", "--limit", "1")
    said = here(*args)
    assert said.code == 2 and "stores/phage" in said.err
    assert here(*args, "--store", "../stores/phage").code == 0


def test_bench_measures_one_step(here: Shell) -> None:
    said = here(
        "bench",
        "length",
        "stores/phage",
        "--contexts",
        "256",
        "--preset",
        "micro",
        "--chunk",
        "100",
        "--json",
    )
    assert said.code == 0, said.err
    (line,) = json.loads(said.out)["lengths"]
    assert line["context"] == 256 and line["chunk"] == 100
    assert line["peak_bytes"] > line["base_bytes"] > line["cache_bytes"] > 0


def test_bench_refuses_before_it_measures(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genoctx.run.bench.run_length", None)
    bench = ("bench", "length", "stores/phage", "--preset", "micro")
    contig = "gi|9626243|ref|NC_001416.1|"
    what = f"{contig}:1-1048576 reaches past its end (48,502 bases)"
    here.refuses(*bench, "--contexts", "1k,1M", what=what, hint="--contexts")
    what = f"{contig}:48001-49024 reaches past its end"
    here.refuses(*bench, "--contexts", "1k", "--start", "48000", what=what, hint="--start")
    here.refuses(*bench, "--contexts", "1k", "--contig", "chr1", what="no contig 'chr1'", hint="it has")
    here.refuses(*bench, "--contexts", "1k", "--chunk", "0", what="--chunk 0", hint="2k")
    here.refuses(*bench, "--contexts", "1", what="1 base has nothing to predict", hint="16k")
    here.refuses(*bench, "--contexts", "1k,", what="'' is not a size", hint="4k")
