"""The whole path on real data, with the commands a user types: FASTA, store, windows, run, ledger, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import EVAL, Path_, Shell, shell

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
