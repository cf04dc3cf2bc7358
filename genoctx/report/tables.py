"""The content of a report: every number with its interval and its number of bases, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.report import remarks
from genoctx.report.ledger import Ledger, bits_per_base, with_contigs
from genoctx.report.render import render_json, render_text, render_tsv, save_report
from genoctx.report.stats import (
    LN2,
    Blocks,
    Estimate,
    Sampling,
    better_and_worse,
    bits,
    blocks_of,
    difference_of_bases,
    ratio,
    require_same_bases,
)

__all__ = ["SCHEMA", "build_report", "render_json", "render_text", "render_tsv", "save_report"]

SCHEMA = 1
UNIFORM_BITS = 2.0
SMALLEST_GAP = 0.001
"""Bits per base a baseline must gain on a uniform guess before a share of that gain means anything."""


@dataclass(frozen=True)
class _Sides:
    """The columns that are compared."""

    after: Blocks
    before: Blocks | None
    paired: bool
    """``before`` scored the same bases as ``after``."""
    baselines: dict[str, Blocks]
    sampling: Sampling


def build_report(
    before: Ledger | None,
    after: Ledger,
    baselines: Mapping[str, Ledger],
    *,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    block: int = 65536,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The report on ``after``, beside ``before`` and ``baselines`` where there are any.

    ``block`` is the length of a resampled block in bases; ``notes`` are added to the footnotes.
    Raises InputError where paired ledgers scored different bases of the same window table, and
    UsageError for settings that cannot be used.
    """
    sampling = Sampling(confidence, bootstrap, seed)
    for ledger in (after, *([before] if before is not None else [])):
        bits_per_base(0.0, ledger.totals().count)  # an evaluation of nothing has no report
    after, before, baselines = _same_contigs(after, before, baselines)
    for name, baseline in baselines.items():
        if differs := difference_of_bases(baseline, after):
            raise InputError(
                f"baseline {name} scored different bases: {differs}", "compute the baselines again"
            )
    unpaired = _unpaired(before, after)
    sides = _Sides(
        blocks_of(after, block),
        blocks_of(before, block) if before is not None else None,
        not unpaired,
        {name: blocks_of(baseline, block) for name, baseline in baselines.items()},
        sampling,
    )
    report: dict[str, Any] = {
        "kind": "genoctx-report",
        "schema": SCHEMA,
        "unit": "bits per base",
        "header": _header(after, before),
        "method": {
            "confidence": confidence, "bootstrap": bootstrap, "block": block, "seed": seed,
            "ledger_block": after.block, "blocks": len(sides.after),
        },
        "main": {loss: _comparison(sides, loss) for loss in ("full", "acgt")},
        "baselines": [_baseline(sides, name, ledger) for name, ledger in baselines.items()],
        "cross_validation": _cross_validation(baselines),
        "share_of_gap": _share_of_gap(sides),
        "contigs": _by_contig(sides),
        "block_lengths": _block_lengths(after, None if unpaired else before, block, sampling),
    }  # fmt: skip
    report["gate"] = remarks.gate(report, unpaired)
    report["warnings"] = [*report["gate"], *remarks.warnings(report)]
    report["notes"] = [*remarks.notes(report), *notes]
    return report


def _same_contigs(
    after: Ledger, before: Ledger | None, baselines: Mapping[str, Ledger]
) -> tuple[Ledger, Ledger | None, dict[str, Ledger]]:
    """The ledgers with one numbering of contigs: that of ``after``, others behind."""
    others = [*([before] if before is not None else []), *baselines.values()]
    contigs = tuple(dict.fromkeys([*after.contigs, *(name for ledger in others for name in ledger.contigs)]))
    renumbered = {name: with_contigs(ledger, contigs) for name, ledger in baselines.items()}
    if before is not None:
        before = with_contigs(before, contigs)
    return with_contigs(after, contigs), before, renumbered


def _unpaired(before: Ledger | None, after: Ledger) -> str:
    """Why there is no difference although there is a ``before``; empty if there is one.

    On one window table different bases are a broken evaluation (InputError); on two they are expected.
    """
    if before is None:
        return ""
    if before.header.get("windows_digest") == after.header.get("windows_digest"):
        require_same_bases(before, after)
    return difference_of_bases(before, after)


def _header(after: Ledger, before: Ledger | None) -> dict[str, Any]:
    spans = after.windows[:, 3] - after.windows[:, 2]
    totals = after.totals()
    excluded = sum(after.excluded.values())
    return {
        "after": after.header,
        "before": before.header if before is not None else None,
        "contigs": [after.contigs[i] for i in np.unique(after.contig)],
        "windows": totals.windows,
        "window_bases": int(spans.sum()),
        "scored_bases": totals.count,
        "excluded": dict(after.excluded),
        "unaccounted_bases": int(spans.sum()) - totals.count - excluded,
        "overlapping_bases": int(spans.sum()) - _covered(after.windows),
    }


def _covered(windows: np.ndarray) -> int:
    """Bases that lie in at least one window."""
    covered, at = 0, (-1, 0)
    for contig, start, end in sorted(windows[:, 1:].tolist()):
        free = max(start, at[1]) if contig == at[0] else start
        covered += max(0, end - free)
        at = (contig, max(end, free))
    return covered


def _comparison(sides: _Sides, loss: str) -> dict[str, Any]:
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
            row["difference"] = _difference(sides, after - before)
    return row


def _difference(sides: _Sides, nats: np.ndarray) -> dict[str, Any]:
    better, worse = better_and_worse(nats)
    return {**bits(sides.after, nats, sides.sampling).as_dict(), "better": better, "worse": worse}


def _baseline(sides: _Sides, name: str, ledger: Ledger) -> dict[str, Any]:
    theirs = sides.baselines[name]
    return {
        "name": name,
        "order": ledger.header.get("order"),
        "train_bases": ledger.header.get("train_bases"),
        "bits": bits(theirs, theirs.nats_acgt, sides.sampling).as_dict(),
        "after_minus_baseline": _difference(sides, sides.after.nats_acgt - theirs.nats_acgt),
    }


def _cross_validation(baselines: Mapping[str, Ledger]) -> dict[str, Any] | None:
    for ledger in baselines.values():
        found = ledger.header.get("cross_validation")
        if found:
            return {"order": ledger.header["order"], **found}
    return None


def _share_of_gap(sides: _Sides) -> dict[str, Any] | None:
    """How far before and after went from a uniform guess (0) to the best baseline (1), over A, C, G, T."""
    if not sides.baselines:
        return None
    name, best = min(sides.baselines.items(), key=lambda item: float(item[1].nats_acgt.sum()))
    uniform = UNIFORM_BITS * LN2 * sides.after.count
    gained = uniform - best.nats_acgt
    gap = bits(best, gained, sides.sampling)
    share: dict[str, Any] = {"baseline": name, "gap": gap.as_dict(), "before": None, "after": None}
    if gap.value > SMALLEST_GAP and (gap.low is None or gap.low > 0):
        for side, blocks in (("before", sides.before if sides.paired else None), ("after", sides.after)):
            if blocks is not None:
                estimate = ratio(uniform - blocks.nats_acgt, gained, blocks, sides.sampling)
                share[side] = estimate.as_dict()
    return share


def _by_contig(sides: _Sides) -> list[dict[str, Any]]:
    rows = []
    for index in np.unique(sides.after.contig):
        before = sides.before.on(index) if sides.before is not None else None
        one = _Sides(sides.after.on(index), before, sides.paired, {}, sides.sampling)
        row: dict[str, Any] = {"contig": sides.after.contigs[index]}
        row |= {"blocks": len(one.after), "bases": int(one.after.count.sum())}
        rows.append({**row, **{loss: _comparison(one, loss) for loss in ("full", "acgt")}})
    return rows


def _block_lengths(
    after: Ledger, before: Ledger | None, block: int, sampling: Sampling
) -> list[dict[str, Any]]:
    """The interval at half, one and two block lengths, of the difference if there is one, else of after."""
    rows = []
    for size in (block // 2, block, 2 * block):
        estimate: Estimate | None = None
        if size >= after.block and size % after.block == 0:
            blocks = blocks_of(after, size)
            nats = blocks.nats_full - (blocks_of(before, size).nats_full if before is not None else 0.0)
            estimate = bits(blocks, nats, sampling)
        half_width = estimate.half_width if estimate else None
        blocks_used = estimate.blocks if estimate else None
        rows.append({"block": size, "blocks": blocks_used, "half_width": half_width})
    return rows
