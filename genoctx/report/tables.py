"""The content of a report: every number with its interval and its number of bases, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.report import method_notes, remarks
from genoctx.report.blocks import Blocks, blocks_of, difference_of_bases, require_same_bases
from genoctx.report.by_block import by_block, extremes
from genoctx.report.by_context import by_context
from genoctx.report.by_stratum import by_position, by_stratum
from genoctx.report.checks import calibration, strands
from genoctx.report.header import header_of
from genoctx.report.ledger import Ledger, bits_per_base, with_contigs
from genoctx.report.seeds import SeedRun, over_seeds
from genoctx.report.sides import LOSSES, Sides, beside_baselines, comparison
from genoctx.report.sources import Beside
from genoctx.report.stats import LN2, Estimate, Sampling, bits, intervals, ratio
from genoctx.report.testing import tests
from genoctx.report.training import training_curves

SCHEMA = 3
UNIFORM_BITS = 2.0
SMALLEST_GAP = 0.001
"""Bits per base a baseline must gain on a uniform guess before a share of that gain means anything."""


def build_report(
    before: Ledger | None,
    after: Ledger,
    baselines: Mapping[str, Ledger],
    *,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    block: int = 65536,
    seed: int = 0,
    test: bool = False,
    runs: Sequence[SeedRun] = (),
    beside: Beside | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The report on ``after``, beside ``before`` and ``baselines`` where there are any.

    ``block`` is the length of a resampled block in bases; with ``test`` differences are tested; ``runs`` are all
    runs of one config with several seeds, of which this is the report on the first; ``beside`` what else there
    is to show; ``notes`` are added to the footnotes. What there are no data for is None or empty.
    Raises InputError where paired ledgers scored different bases of the same window table, and
    UsageError for settings that cannot be used.
    """
    sampling, beside = Sampling(confidence, bootstrap, seed, test), beside or Beside()
    for ledger in (after, *([before] if before is not None else [])):
        bits_per_base(0.0, ledger.totals().count)  # an evaluation of nothing has no report
    after, before, baselines = _same_contigs(after, before, baselines)
    for name, baseline in baselines.items():
        if differs := difference_of_bases(baseline, after):
            raise InputError(
                f"baseline {name} scored different bases: {differs}", "compute the baselines again"
            )
    unpaired = _unpaired(before, after)
    sides = Sides(
        blocks_of(after, block),
        blocks_of(before, block) if before is not None else None,
        not unpaired,
        {name: blocks_of(baseline, block) for name, baseline in baselines.items()},
        sampling,
    )
    goals = {name: sides.baselines[name] for name in _goals(baselines)}
    report: dict[str, Any] = {
        "kind": "genoctx-report",
        "schema": SCHEMA,
        "unit": "bits per base",
        "header": header_of(after, before, beside),
        "method": {
            "confidence": confidence, "bootstrap": bootstrap, "block": block, "seed": seed,
            "ledger_block": after.block, "blocks": len(sides.after),
        },
        "main": {loss: comparison(sides, loss) for loss in LOSSES},
        "baselines": _baselines(sides, baselines),
        "cross_validation": _cross_validation(baselines),
        "share_of_gap": _share_of_gap(sides, goals),
        "contigs": _by_contig(sides, goals),
        "block_lengths": _block_lengths(after, None if unpaired else before, block, sampling),
        "intervals": _intervals(sides),
        "seeds": over_seeds(runs, block, sampling),
        **_views(sides, after, None if unpaired else before, _goals(baselines), beside, block),
    }  # fmt: skip
    report["tests"] = tests(report) if test else None
    report["gate"] = remarks.gate(report, unpaired)
    report["warnings"] = [*report["gate"], *remarks.warnings(report)]
    report["notes"] = [*method_notes.notes(report), *notes]
    return report


def _goals(baselines: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """Base composition is no goal and left out, unless there is no other baseline."""
    return {name: ledger for name, ledger in baselines.items() if name != "order-0"} or dict(baselines)


def _views(
    sides: Sides,
    after: Ledger,
    before: Ledger | None,
    goals: Mapping[str, Ledger],
    beside: Beside,
    block: int,
) -> dict[str, Any]:
    """The sections that need more than the ledger's rows; ``before`` only where it is paired."""
    blocks, sampling = by_block(sides, after), sides.sampling
    with_before = {"after": after, **({"before": before} if before is not None else {})}
    positions = {side: by_position(ledger) for side, ledger in with_before.items()}
    reliability = {side: calibration(ledger) for side, ledger in with_before.items()}
    contexts, reverse = beside.contexts, beside.reverse
    return {
        "strata": by_stratum(after, before, block, sampling, goals),
        "contexts": by_context(contexts, beside.contexts_before, block, sampling) if contexts else None,
        "positions": {"before": None, **positions} if positions["after"] else None,
        "blocks": blocks,
        "extremes": extremes(blocks, block),
        "calibration": {"before": None, **reliability} if reliability["after"] else None,
        "strands": strands(after, reverse, block, sampling) if reverse is not None else None,
        "training": training_curves(beside.metrics, beside.held_out, block, sampling),
    }


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


def _baselines(sides: Sides, baselines: Mapping[str, Ledger]) -> list[dict[str, Any]]:
    return [
        {**row, **{key: baselines[row["name"]].header.get(key) for key in ("order", "copy", "train_bases")}}
        for row in beside_baselines(sides)
    ]


def _cross_validation(baselines: Mapping[str, Ledger]) -> dict[str, Any] | None:
    for ledger in baselines.values():
        found = ledger.header.get("cross_validation")
        if found:
            return {"order": ledger.header["order"], **found}
    return None


def _share_of_gap(sides: Sides, goals: Mapping[str, Blocks]) -> list[dict[str, Any]]:
    """How far before and after went from a uniform guess (0) to each baseline (1), over A, C, G, T."""
    uniform = UNIFORM_BITS * LN2 * sides.after.count
    rows = []
    for name, goal in goals.items():
        gained = uniform - goal.nats_acgt
        gap = bits(goal, gained, sides.sampling)
        row: dict[str, Any] = {"baseline": name, "gap": gap.as_dict(), "before": None, "after": None}
        if gap.value > SMALLEST_GAP and (gap.low is None or gap.low > 0):
            for side, blocks in (("before", sides.before if sides.paired else None), ("after", sides.after)):
                if blocks is not None:
                    estimate = ratio(uniform - blocks.nats_acgt, gained, blocks, sides.sampling)
                    row[side] = estimate.as_dict()
        rows.append(row)
    return rows


def _by_contig(sides: Sides, goals: Mapping[str, Blocks]) -> list[dict[str, Any]]:
    rows = []
    for index in np.unique(sides.after.contig):
        before = sides.before.on(index) if sides.before is not None else None
        beside = {name: blocks.on(index) for name, blocks in goals.items()}
        one = Sides(sides.after.on(index), before, sides.paired, beside, sides.sampling)
        row: dict[str, Any] = {"contig": sides.after.contigs[index]}
        row |= {"blocks": len(one.after), "bases": int(one.after.count.sum())}
        losses = {loss: comparison(one, loss) for loss in LOSSES}
        rows.append({**row, **losses, "baselines": beside_baselines(one)})
    return rows


def _intervals(sides: Sides) -> list[dict[str, Any]]:
    """Of after, and of the difference if there is one, over A, C, G and T by every method that the number of
    blocks allows."""
    columns = {"after": sides.after.nats_acgt}
    if sides.before is not None and sides.paired:
        columns["difference"] = sides.after.nats_acgt - sides.before.nats_acgt
    return [
        {"quantity": quantity, "method": method, "low": low, "high": high}
        for quantity, nats in columns.items()
        for method, (low, high) in intervals(nats, sides.after, sides.sampling).items()
    ]


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
