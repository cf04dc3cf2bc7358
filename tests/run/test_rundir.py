"""The run directory: resume, refusal, crash-safe checkpoints, one process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from genoctx.config import Config, load_config
from genoctx.errors import InputError, UsageError
from genoctx.run.provenance import Inputs
from genoctx.run.rundir import RunDir, checkpoint_step, checkpoints, latest_checkpoint

INPUTS = Inputs(store="sha256:aa", windows="sha256:bb")
SOURCE = "# mine\n"


def config(*overrides: str) -> Config:
    return load_config(None, "nano", ["data.store=s", "data.windows=w", *overrides])


def opened(path: Path, *overrides: str, inputs: Inputs = INPUTS, fresh: bool = False) -> RunDir:
    return RunDir.create_or_resume(path, config(*overrides), source=SOURCE, inputs=inputs, fresh=fresh)


def save(run: RunDir, step: int, text: str = "weights") -> Path:
    folder = run.new_checkpoint_dir()
    (folder / "model.safetensors").write_text(text)
    return run.commit_checkpoint(folder, step)


def begun(path: Path) -> None:
    """A run that has something to lose."""
    with opened(path) as run:
        save(run, 1)


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    with opened(tmp_path / "runs/a") as run:
        assert not run.resumed
        assert (run.path / "config.toml").read_text() == SOURCE
        assert json.loads((run.path / "config.resolved.json").read_text()) == config().to_dict()
        record = json.loads((run.path / "provenance.json").read_text())
    assert record["inputs"] == {"store": "sha256:aa", "windows": "sha256:bb"}
    (session,) = record["sessions"]
    assert session["ranks"] == 1
    assert session["argv"] == sys.argv
    assert {"genoctx", "python", "torch", "numpy"} <= set(session["versions"])
    assert session["machine"]["cpus"] == os.cpu_count()
    assert not list(run.path.glob("*.tmp*"))


def test_resume_keeps_the_run_and_notes_the_session(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        save(run, 3)
    with opened(tmp_path / "a", "stream.chunk=64", "checkpoint.keep=7") as run:
        assert run.resumed
        assert run.latest_checkpoint() == run.path / "checkpoints/step-000003"
        assert len(json.loads((run.path / "provenance.json").read_text())["sessions"]) == 2


def test_resume_with_another_config_names_the_keys(tmp_path: Path) -> None:
    begun(tmp_path / "a")
    with pytest.raises(InputError) as caught:
        opened(tmp_path / "a", "train.seed=3", "optim.lr=0.5")
    assert "train.seed 0 -> 3" in caught.value.message
    assert "optim.lr 0.001 -> 0.5" in caught.value.message
    assert "--fresh" in caught.value.hint
    opened(tmp_path / "a").close()  # the refusal left the lock free and the run alone


@pytest.mark.parametrize("work", ["metrics.jsonl", "eval", "window", "ranks"])
def test_an_attempt_that_failed_before_any_work_takes_another_config(tmp_path: Path, work: str) -> None:
    opened(tmp_path / "a").close()
    (tmp_path / "a" / "train.log").write_text("error: no weights\n")
    with opened(tmp_path / "a", "train.seed=3", inputs=Inputs(store="sha256:aa", windows="sha256:cc")) as run:
        assert not run.resumed
        assert json.loads((run.path / "config.resolved.json").read_text())["train"]["seed"] == 3
        (run.path / work).mkdir()  # from here on there is something to lose
    with pytest.raises(InputError, match=r"train\.seed 3 -> 4"):
        opened(tmp_path / "a", "train.seed=4")


def test_resume_with_other_windows_shows_both_digests(tmp_path: Path) -> None:
    begun(tmp_path / "a")
    with pytest.raises(InputError, match="windows: digest sha256:bb, now sha256:cc"):
        opened(tmp_path / "a", inputs=Inputs(store="sha256:aa", windows="sha256:cc"))


def test_fresh_clears_the_run_but_not_foreign_files(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        save(run, 3)
        run.eval_path(3).mkdir(parents=True)
        run.metrics_path.write_text("{}\n")
        (run.path / "notes.txt").write_text("keep me")
    with opened(tmp_path / "a", "train.seed=3", fresh=True) as run:
        assert not run.resumed
        assert run.latest_checkpoint() is None
        assert not run.metrics_path.exists()
        assert not (run.path / "eval").exists()
        assert (run.path / "notes.txt").read_text() == "keep me"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_someone_else_is_never_touched(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not a run"):
        opened(tmp_path, fresh=fresh)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(UsageError, match="is not a run"):
        opened(tmp_path / "a")


def test_damaged_config_is_named(tmp_path: Path) -> None:
    begun(tmp_path / "a")
    (tmp_path / "a/config.resolved.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.resolved\.json"):
        opened(tmp_path / "a")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from genoctx.cli.app import explain; from genoctx.cli.console import Console\n"
        "from pathlib import Path; from genoctx.config import load_config\n"
        "from genoctx.run.provenance import Inputs; from genoctx.run.rundir import RunDir\n"
        "config = load_config(None, 'nano', ['data.store=s', 'data.windows=w'])\n"
        "try:\n"
        "    inputs = Inputs('sha256:aa', 'sha256:bb')\n"
        "    RunDir.create_or_resume(Path(sys.argv[1]), config, source='', inputs=inputs)\n"
        "except Exception as error:\n"
        "    sys.exit(explain(error, Console()))\n"
    )

    def other() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "a")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with opened(tmp_path / "a"):
        refused = other()
    assert refused.returncode == 2
    assert f"in use by process {os.getpid()}" in refused.stderr
    assert other().returncode == 0


def test_checkpoints_are_found_pruned_and_pointed_to(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        for step in (2, 10, 1_000_000):
            save(run, step)
        assert [checkpoint_step(c) for c in checkpoints(run.path)] == [2, 10, 1_000_000]
        assert run.prune(2) == [run.path / "checkpoints/step-000002"]
        assert [checkpoint_step(c) for c in checkpoints(run.path)] == [10, 1_000_000]
        assert (run.path / "LATEST").read_text() == "step-1000000\n"


def test_prune_spares_the_one_that_latest_names(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        for step in (1, 2, 3):
            save(run, step)
        (run.path / "LATEST").write_text("step-000001\n")
        run.prune(1)
        assert [checkpoint_step(c) for c in checkpoints(run.path)] == [1, 3]
        assert run.latest_checkpoint() == run.path / "checkpoints/step-000001"


def test_a_checkpoint_written_again_replaces_the_old_one(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        save(run, 1, "old")
        final = save(run, 1, "new")
        assert (final / "model.safetensors").read_text() == "new"
        assert [p.name for p in final.parent.iterdir()] == ["step-000001"]


def test_a_crash_in_the_middle_of_a_checkpoint_leaves_the_older_one(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        save(run, 1)
        (run.new_checkpoint_dir() / "model.safetensors").write_text("half")
        (run.path / "checkpoints/step-000002").mkdir()  # copied by hand, never completed
    assert latest_checkpoint(tmp_path / "a") == tmp_path / "a/checkpoints/step-000001"
    with opened(tmp_path / "a") as run:
        assert not list((run.path / "checkpoints").glob(".tmp-*"))


def test_latest_that_names_nothing_falls_back(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as run:
        save(run, 1)
        (run.path / "LATEST").write_text("step-000009\n")
        assert run.latest_checkpoint() == run.path / "checkpoints/step-000001"
