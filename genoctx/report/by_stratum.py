"""Loss by what a base is: region class, soft-mask, GC of its surroundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genoctx.report.blocks import Blocks, require_multiple, sum_blocks
from genoctx.report.ledger import Ledger
from genoctx.report.rows import bits_per_base
from genoctx.report.sides import LOSSES, Sides, beside_baselines, comparison
from genoctx.report.stats import Sampling

FACETS = {"region": "Region class", "mask": "Soft-mask", "gc": "GC of the 1,024 bases around"}
_LABELS = {f"CDS{i}": f"CDS, codon position {i}" for i in (1, 2, 3)}


def by_stratum(
    after: Ledger,
    before: Ledger | None,
    size: int,
    sampling: Sampling,
    baselines: Mapping[str, Ledger] | None = None,
) -> list[dict[str, Any]]:
    """Per facet its strata with before, after and difference over blocks of ``size`` bases.

    ``before`` must have scored the same bases; it counts where it has the facet too, and so do ``baselines``.
    """
    if after.strata is None:
        return []
    tables = []
    for facet in after.strata.facets:
        known = before is not None and _has(before, facet)
        beside = {name: ledger for name, ledger in (baselines or {}).items() if _has(ledger, facet)}
        rows = [
            _row(name, after, before if known else None, size, sampling, beside)
            for name in after.strata.names
            if name.startswith(f"{facet}/") and len(blocks_of_stratum(after, name, size))
        ]
        tables.append({"facet": facet, "title": FACETS.get(facet, facet), "rows": rows})
    return tables


def _has(ledger: Ledger, facet: str) -> bool:
    return ledger.strata is not None and facet in ledger.strata.facets


def _row(
    name: str,
    after: Ledger,
    before: Ledger | None,
    size: int,
    sampling: Sampling,
    baselines: Mapping[str, Ledger],
) -> dict[str, Any]:
    here = blocks_of_stratum(after, name, size)
    there = blocks_of_stratum(before, name, size) if before is not None else None
    paired = there is not None and np.array_equal(there.count, here.count)
    beside = {each: blocks_of_stratum(ledger, name, size) for each, ledger in baselines.items()}
    sides = Sides(here, there, paired, beside, sampling)
    bases = int(here.count.sum())
    row = {"stratum": name, "label": label(name), "blocks": len(here), "bases": bases}
    return {
        **row,
        "share": bases / after.totals().count,
        **{loss: comparison(sides, loss) for loss in LOSSES},
        "baselines": beside_baselines(sides),
    }


def label(name: str) -> str:
    """``gc/3`` as people say it: ``30-40 %``."""
    facet, _, value = name.partition("/")
    if facet == "gc" and value.isdecimal():
        return f"{10 * int(value)}-{10 * int(value) + 10} %"
    return _LABELS.get(value, value)


def blocks_of_stratum(ledger: Ledger, name: str, size: int) -> Blocks:
    """Sums by block of the bases of one stratum, empty if there are none."""
    require_multiple(size, ledger.block)
    strata = ledger.strata
    if strata is None or name not in strata.names:
        none = np.zeros(0, dtype=np.int64)
        return Blocks(size, ledger.contigs, none, none, none, np.zeros(0), np.zeros(0))
    mine = strata.stratum == strata.names.index(name)
    windows = ledger.windows[np.searchsorted(ledger.windows[:, 0], strata.window[mine])]
    columns = (strata.block_start, strata.count, strata.nats_full_sum, strata.nats_acgt_sum)
    return sum_blocks(ledger.contigs, size, windows[:, 1], *(column[mine] for column in columns))


def by_position(ledger: Ledger) -> list[dict[str, Any]]:
    """Bits per base by how far into its window a base is read, in doublings; positions count from 1."""
    if ledger.positions is None:
        return []
    return [
        {
            "from": 1 << octave,
            "to": (2 << octave) - 1,
            "bases": count,
            "bits": bits_per_base(nats, count),
        }
        for octave, (count, nats) in enumerate(
            zip(ledger.positions.count.tolist(), ledger.positions.nats_acgt_sum.tolist(), strict=True)
        )
        if count
    ]
