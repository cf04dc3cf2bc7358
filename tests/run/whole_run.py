"""A run that nothing interrupts, and what it takes to be the same as it."""

from __future__ import annotations

from pathlib import Path

from tiny_run import Data, Listener, bits, metrics, run

from genoctx.report.ledger import Ledger
from genoctx.run.rundir import checkpoint_step, latest_checkpoint

STEPS = 5


class Whole:
    """The run that nothing interrupts: what all others are compared with."""

    def __init__(self, data: Data, folder: Path) -> None:
        self.out = folder / "whole"
        self.listener = Listener()
        self.config = data.config(folder)
        self.outcome = run(self.config, self.out, self.listener)


def ledger(out: Path, step: int) -> Ledger:
    return Ledger.load(out / f"eval/step-{step:06d}/ledger.npz")


def newest(out: Path) -> int | None:
    """The step that a resume starts from."""
    found = latest_checkpoint(out)
    return checkpoint_step(found) if found else None


def assert_same_run(out: Path, whole: Whole) -> None:
    """``out`` ends as the uninterrupted run does, bit for bit."""
    assert bits(out, STEPS) == bits(whole.out, STEPS)
    assert metrics(out) == metrics(whole.out)
    for step in (0, STEPS):
        assert ledger(out, step).totals() == ledger(whole.out, step).totals()
    assert not list(out.rglob(".tmp*")) and not list(out.rglob("*.tmp-*"))
