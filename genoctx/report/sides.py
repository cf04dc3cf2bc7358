"""What is compared: the evaluation after training with the one before, and with baselines, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from genoctx.report.blocks import Blocks
from genoctx.report.stats import Sampling, better_and_worse, bits, chance

LOSSES = ("full", "acgt")
"""Over the full vocabulary; renormalised over A, C, G and T."""


@dataclass(frozen=True)
class Sides:
    """The columns that are compared; all over the same blocks where they are paired."""

    after: Blocks
    before: Blocks | None
    paired: bool
    """``before`` scored the same bases as ``after``."""
    baselines: dict[str, Blocks]
    sampling: Sampling


def comparison(sides: Sides, loss: str) -> dict[str, Any]:
    """Before, after and their difference in bits per base; None for what there is not."""
    after = sides.after.nats(loss)
    row: dict[str, Any] = {
        "before": None,
        "after": bits(sides.after, after, sides.sampling).as_dict(),
        "difference": None,
    }
    if sides.before is not None and len(sides.before):
        before = sides.before.nats(loss)
        row["before"] = bits(sides.before, before, sides.sampling).as_dict()
        if sides.paired:
            row["difference"] = difference(sides, after - before)
    return row


def difference(sides: Sides, nats: np.ndarray) -> dict[str, Any]:
    """Of paired columns, ``nats`` [blocks] after minus before, in bits per base; negative is better.

    With its chance ``p`` where that was asked for.
    """
    better, worse = better_and_worse(nats)
    found = {**bits(sides.after, nats, sides.sampling).as_dict(), "better": better, "worse": worse}
    return {**found, "p": chance(nats, sides.after)} if sides.sampling.test else found


def beside_baselines(sides: Sides) -> list[dict[str, Any]]:
    """Every baseline over A, C, G and T, and what after is more than it."""
    after, sampling = sides.after.nats_acgt, sides.sampling
    return [
        {
            "name": name,
            "bits": bits(theirs, theirs.nats_acgt, sampling).as_dict(),
            "after_minus_baseline": difference(sides, after - theirs.nats_acgt),
        }
        for name, theirs in sides.baselines.items()
    ]
