"""The whole path on real data, with the commands a user types: FASTA, store, windows, run, ledger, report."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_run import MODEL, RUN

from genoctx.cli import app

SETTINGS = RUN.replace("steps = 5", "steps = 3").replace("limit = 1", "limit = 2")


def shell(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``genoctx ...`` in a process of its own, started in ``folder``."""
    return subprocess.run(
        [sys.executable, "-m", "genoctx", *args],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@dataclass(frozen=True)
class Path_:
    """What the commands left, and what each of them said."""

    folder: Path
    said: dict[str, subprocess.CompletedProcess[str]]

    def json(self, step: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.said[step].stdout)
        return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> Path_:
    folder = tmp_path_factory.mktemp("path")
    (folder / "run.toml").write_text(
        f'[data]\nstore = "stores/phage"\nwindows = "phage.bed"\n{MODEL}{SETTINGS}'
    )
    (folder / "shape.toml").write_text(MODEL)
    (folder / "stores").mkdir()
    steps = {
        "ingest": ("ingest", str(genomes / "lambda_phage.fa.gz"), "-o", "stores/phage"),
        "windows": ("windows", "stores/phage", "-o", "phage.bed", "--context", "2k", "--holdout", "0.2"),
        "train": ("train", "run.toml", "-o", "runs/phage"),
        "eval": ("eval", "runs/phage", "--windows", "phage.bed", "-o", "scored"),
        "report": ("report", "runs/phage"),
        "run": ("show", "run", "runs/phage"),
        "store": ("show", "store", "stores/phage"),
        "table": ("show", "windows", "phage.bed"),
        "doctor": ("doctor", "shape.toml", "--selftest"),
    }
    return Path_(folder, {name: shell(folder, *args, "--json") for name, args in steps.items()})


STEPS = ("ingest", "windows", "train", "eval", "report", "run", "store", "table", "doctor")


@pytest.mark.parametrize("step", STEPS)
def test_every_command_succeeds_and_speaks_json(step: str, path: Path_) -> None:
    done = path.said[step]
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and path.json(step)
    assert "Traceback" not in done.stderr and "error:" not in done.stderr


def test_the_numbers_agree_along_the_path(path: Path_) -> None:
    assert path.json("ingest")["bases"] == 48502
    digest = path.json("ingest")["digest"]
    assert path.json("windows")["store_digest"] == path.json("store")["digest"] == digest
    splits = {s["split"]: s for s in path.json("windows")["splits"]}
    assert {(g["split"], g["windows"]) for g in path.json("table")["groups"]} == {
        (name, s["windows"]) for name, s in splits.items()
    }
    trained = path.json("train")
    assert trained == {
        "run": "runs/phage",
        "step": 3,
        "bases": 3 * 2047,
        "checkpoint": "runs/phage/checkpoints/step-000003",
        "resumed": False,
    }
    shown = path.json("run")
    assert shown["last"]["step"] == 3 and shown["checkpoints"] == [2, 3]
    assert [e["name"] for e in shown["evaluations"]] == ["step-000000", "step-000003"]
    assert shown["provenance"]["inputs"]["store"] == digest


def test_eval_of_all_windows_contains_that_of_the_run(path: Path_, here: Shell) -> None:
    """The run scored two windows; `genoctx eval` scored all, at another chunk size."""
    scored, split = path.json("eval"), path.json("windows")["splits"]
    windows = next(s["windows"] for s in split if s["split"] == "holdout")
    assert scored["windows"] == windows and scored["scored_bases"] == 2047 * windows
    two = here(*EVAL, "-o", "two", "--limit", "2", "--json")
    assert two.code == 0, two.err
    summary = json.loads(Path("runs/phage/eval/step-000003/summary.json").read_text())
    again = json.loads(two.out)
    assert again["scored_bases"] == summary["scored_bases"]
    assert abs(again["bits_acgt"] - summary["bits_acgt"]) < 2e-6
    assert abs(again["bits_full"] - summary["bits_full"]) < 2e-6


def test_the_report_has_the_numbers_of_the_run(path: Path_) -> None:
    before, after = (
        json.loads((path.folder / f"runs/phage/eval/step-{step:06d}/summary.json").read_text())
        for step in (0, 3)
    )
    shown = shell(path.folder, "report", "runs/phage", "--format", "text")
    assert shown.returncode == 0, shown.stderr
    assert f"{before['bits_full']:.3f}" in shown.stdout and f"{after['bits_full']:.3f}" in shown.stdout
    assert f"scored      {after['scored_bases']:,} of" in shown.stdout


def test_the_selftest_is_exact(path: Path_) -> None:
    found = path.json("doctor")["selftest"]
    assert found["passed"] and found["gradient"] <= 1e-10 and found["loss"] <= 1e-10
    assert found["parameters"] > 80 and found["chunks"] == 6


def test_the_log_holds_what_was_said(path: Path_) -> None:
    log = (path.folder / "runs/phage/train.log").read_text()
    assert path.said["train"].stderr == log + "next: genoctx report runs/phage\n"
    assert "done: step 3, 6,141 bases" in log


# one process per command is slow; what follows is the same entry point in this process


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


class Shell:
    """``genoctx ...`` in this process, in a folder with everything but the run's own directory copied."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *args: str) -> Said:
        self._capsys.readouterr()
        code = app.run([*args])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return Said(code, out, err)

    def refuses(self, *args: str, code: int = 2, what: str, hint: str) -> None:
        """The error says what and where, the hint what to do; stdout stays empty."""
        said = self(*args)
        assert said.code == code, said.err
        lines = said.err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        hints = [line for line in lines if line.startswith("hint: ")]
        assert said.out == ""
        assert len(errors) == len(hints) == 1, said.err
        assert what in said.err.partition("hint: ")[0], said.err
        assert hint in hints[0], said.err


@pytest.fixture
def here(
    path: Path_, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    shutil.copytree(path.folder, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(tmp_path / "work", capsys)


CHECKPOINT = "runs/phage/checkpoints/step-000003"
EVAL = ("eval", "runs/phage", "--windows", "phage.bed")


def test_wrong_arguments(here: Shell) -> None:
    for args, what, hint in (
        (("train",), "Missing argument 'CONFIG.toml'", "genoctx train --help"),
        (("train", "run.toml"), "Missing option '--output'", "genoctx train --help"),
        (("train", "run.toml", "-o", "new", "--stpes", "3"), "No such option: --stpes", "--steps"),
        (("train", "run.toml", "-o", "new", "--max-time", "soon"), "--max-time 'soon'", "90m"),
        (("train", "run.toml", "-o", "new", "--max-time", "0"), "--max-time '0'", "90m"),
        (("train", "run.toml", "-o", "new", "--set", "optim.lrr=1"), "optim.lrr (--set)", "optim.lr"),
        (
            ("train", "run.toml", "-o", "new", "--set", "optim.lr"),
            "'optim.lr' is not KEY=VALUE",
            "--set optim.lr",
        ),
        (("train", "run.toml", "-o", "new", "--preset", "nanoo"), "'nanoo'", "nano"),
        ((*EVAL, "-o", "new", "--limit", "-1"), "--limit", "genoctx eval --help"),
        ((*EVAL, "-o", "new", "--chunk", "0"), "--chunk 0", "4k"),
        ((*EVAL, "-o", "new", "--chunk", "lots"), "'lots' is not a size", "4k"),
        ((*EVAL, "-o", "new", "--dtype", "int8"), "'int8'", "float32"),
        ((*EVAL, "-o", "new", "--split", "test"), "phage.bed has no window of split 'test'", "--holdout"),
        (("bench", "width", "stores/phage"), "'width' is not", "genoctx bench --help"),
        (("doctor", "--preset", "nanoo", "--selftest"), "'nanoo'", "nano"),
    ):
        if args[0] != "doctor":
            here.refuses(*args, what=what, hint=hint)
        else:  # facts about the machine go first
            said = here(*args)
            assert said.code == 2 and what in said.err and hint in said.err
    assert not Path("new").exists()


def test_missing_files(here: Shell) -> None:
    for args, what, hint in (
        (("ingest", "none.fa", "-o", "new"), "none.fa", "hint"),
        (("windows", "none", "-o", "new.bed", "--context", "2k", "--holdout", "0.2"), "none", "hint"),
        (("train", "none.toml", "-o", "new"), "none.toml", "presets"),
        (("train", "run.toml", "-o", "new", "--set", "data.store=none"), "none", "genoctx ingest"),
        (("train", "run.toml", "-o", "new", "--set", "data.windows=none.bed"), "none.bed", "hint"),
        (("train", "run.toml", "-o", "new", "--set", "train.init=none"), "no weights in", "safetensors"),
        (
            ("eval", "none", "--windows", "phage.bed", "-o", "new"),
            "none is neither a checkpoint",
            "hub directory",
        ),
        (("eval", "runs/phage", "--windows", "none.bed", "-o", "new"), "none.bed", "hint"),
        (("report", "none"), "none does not exist", "run directory"),
        (("report", "stores/phage"), "stores/phage holds no ledger.npz", "genoctx eval"),
        (("show", "run", "stores/phage"), "stores/phage is not a run", "train -o"),
        (("doctor", "none.toml", "--selftest"), "none.toml", "presets"),
    ):
        said = here(*args)
        assert said.code == 2, said.err
        error, found, remedy = said.err.partition("hint: ")
        assert "error: " in error and what in error, said.err
        assert found and (hint == "hint" or hint in remedy), said.err


def test_a_broken_checkpoint(here: Shell) -> None:
    weights = Path(CHECKPOINT, "model.safetensors")
    whole = weights.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:length])
        here.refuses(*EVAL, "-o", "new", what=str(weights), hint="fetch it again")
    Path("runs/phage/eval/step-000003/ledger.npz").unlink()  # so that train has something to do
    here.refuses("train", "run.toml", "-o", "runs/phage", what=CHECKPOINT, hint="remove this checkpoint")
    shutil.rmtree(CHECKPOINT)
    said = here("train", "run.toml", "-o", "runs/phage")
    assert said.code == 0 and "resuming after step 2 of 3" in said.err
    assert weights.read_bytes() == whole


def test_a_broken_shape(here: Shell) -> None:
    config = Path(CHECKPOINT, "config.json")
    for text in ("{", "[]", "{}"):
        config.write_text(text)
        said = here(*EVAL, "-o", "new")
        assert said.code == 2 and str(config) in said.err, (text, said.err)


def test_a_run_that_is_in_use(here: Shell) -> None:
    code = (
        "import sys; from pathlib import Path; from genoctx.config import load_config\n"
        "from genoctx.genome.windows import read_table; from genoctx.run.rundir import _lock\n"
        "held = _lock(Path('runs/phage')); print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        log = Path("runs/phage/train.log").read_text()
        for flags in ((), ("--fresh",)):
            in_use = f"runs/phage is in use by process {other.pid}"
            here.refuses("train", "run.toml", "-o", "runs/phage", *flags, what=in_use, hint="another -o")
        assert here("show", "runs/phage").code == 0  # looking is free
        other.communicate("")
    assert Path("runs/phage/train.log").read_text() == log
    assert here("train", "run.toml", "-o", "runs/phage").code == 0


def test_a_directory_that_is_no_run(here: Shell) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("years")
    for out in ("thesis", "run.toml"):
        for flags in ((), ("--fresh",)):
            what = f"{out} exists and is not a run"
            here.refuses("train", "run.toml", "-o", out, *flags, what=what, hint="another -o")
    assert [p.name for p in Path("thesis").iterdir()] == ["chapter.tex"]


def test_a_start_that_fails_leaves_nothing(here: Shell) -> None:
    assert here("train", "run.toml", "-o", "new", "--set", "data.store=none").code == 2
    assert not Path("new").exists()


def test_a_folder_that_a_kill_left_at_birth_is_a_run(here: Shell) -> None:
    Path("new").mkdir()
    Path("new/.config.resolved.json.tmp-77").write_text("{")
    Path("new/.lock").write_text("process 77 on nowhere\n")
    said = here("train", "run.toml", "-o", "new", "--steps", "0")
    assert said.code == 0, said.err
    assert not list(Path("new").glob(".*.tmp-*"))


def test_another_config_and_another_store(here: Shell) -> None:
    what, hint = "optim.lr 0.01 -> 0.5", "--fresh"
    here.refuses("train", "run.toml", "-o", "runs/phage", "--set", "optim.lr=0.5", what=what, hint=hint)
    what = "train.steps 3 -> 4"
    here.refuses("train", "run.toml", "-o", "runs/phage", "--steps", "4", what=what, hint=hint)
    Path("b.fa").write_text(">b\n" + "ACGT" * 2000 + "\n")
    assert here("ingest", "b.fa", "-o", "stores/b").code == 0
    what, hint = "phage.bed was cut from store", "cut a new table"
    here.refuses("train", "run.toml", "-o", "new", "--set", "data.store=stores/b", what=what, hint=hint)
    here.refuses(*EVAL, "--store", "stores/b", "-o", "new", what=what, hint=hint)


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
