"""What a user gets wrong along the path: one error, one hint, and nothing is touched."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from shell import CHECKPOINT, EVAL, Shell


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
