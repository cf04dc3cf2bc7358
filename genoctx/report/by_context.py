"""The context-benefit curve: what longer context gains on the same bases, seen before or novel."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from genoctx.report.blocks import Blocks, require_multiple, sum_blocks
from genoctx.report.context_ledger import ContextLedger
from genoctx.report.sides import Sides, difference
from genoctx.report.stats import Sampling, bits

GROUPS = {"all": (0, 1), "novel": (0,), "seen": (1,)}
"""The values of ``ContextLedger.seen`` in each."""


def by_context(
    after: ContextLedger, before: ContextLedger | None, size: int, sampling: Sampling
) -> dict[str, Any]:
    """Bits per base at every context, and the paired difference to the shortest one, over blocks of ``size``.

    ``before`` stands beside it where it has the same contexts and bases; so does the adaptive baseline, and what
    the model is better than it, where the ledger has it.
    """
    if before is not None and not _same_bases(after, before):
        before = None
    adaptive = _adaptive(after)
    return {
        "contexts": list(after.contexts),
        "windows": len(after.windows),
        "after": _curves(after, size, sampling, adaptive),
        "before": _curves(before, size, sampling) if before is not None else None,
        "adaptive": _curves(adaptive, size, sampling) if adaptive is not None else None,
    }


def _adaptive(ledger: ContextLedger) -> ContextLedger | None:
    """The baseline in the place of the model."""
    nats = ledger.adaptive_nats_sum
    return None if nats is None else dataclasses.replace(ledger, nats_acgt_sum=nats, adaptive_nats_sum=None)


def _same_bases(a: ContextLedger, b: ContextLedger) -> bool:
    columns = ("context", "window", "block_start", "seen", "count")
    return a.contexts == b.contexts and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in (*columns, "windows")
    )


def _curves(
    ledger: ContextLedger, size: int, sampling: Sampling, baseline: ContextLedger | None = None
) -> list[dict[str, Any]]:
    require_multiple(size, ledger.block)
    curves = []
    for group, seen in GROUPS.items():
        levels = _levels(ledger, seen, size)
        if len(levels[0]):
            bases = int(levels[0].count.sum())
            points = _points(ledger.contexts, levels, sampling)
            if baseline is not None:
                for point, here, there in zip(points, levels, _levels(baseline, seen, size), strict=True):
                    point["minus_adaptive"] = _difference(here, there, sampling)
            curves.append({"group": group, "bases": bases, "points": points})
    return curves


def _levels(ledger: ContextLedger, seen: tuple[int, ...], size: int) -> list[Blocks]:
    return [blocks_at(ledger, i, seen, size) for i in range(len(ledger.contexts))]


def _points(contexts: tuple[int, ...], levels: list[Blocks], sampling: Sampling) -> list[dict[str, Any]]:
    """One row per context; the shortest has no difference."""
    shortest, points = levels[0], []
    for context, blocks in zip(contexts, levels, strict=True):
        gained = None if blocks is shortest else _difference(blocks, shortest, sampling)
        here = bits(blocks, blocks.nats_acgt, sampling).as_dict()
        points.append({"context": context, "bits": here, "difference": gained, "minus_adaptive": None})
    return points


def _difference(blocks: Blocks, other: Blocks, sampling: Sampling) -> dict[str, Any]:
    return difference(Sides(blocks, other, True, {}, sampling), blocks.nats_acgt - other.nats_acgt)


def blocks_at(ledger: ContextLedger, level: int, seen: tuple[int, ...], size: int) -> Blocks:
    """Sums by block at one context of the bases whose ``seen`` is listed."""
    mine = (ledger.context == level) & np.isin(ledger.seen, seen)
    contig, start, count, nats = (
        column[mine] for column in (ledger.contig, ledger.block_start, ledger.count, ledger.nats_acgt_sum)
    )
    return sum_blocks(ledger.contigs, size, contig, start, count, nats, nats)
