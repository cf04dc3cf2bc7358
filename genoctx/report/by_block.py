"""The blocks themselves: loss along each contig, and where it is highest and lowest."""

from __future__ import annotations

from typing import Any

import numpy as np

from genoctx.report.ledger import Ledger
from genoctx.report.sides import Sides
from genoctx.report.stats import LN2

EXTREMES = 10
ENOUGH = 0.5
"""A block with less than this share of its bases scored is not named among the best and worst."""


def by_block(sides: Sides, after: Ledger) -> dict[str, Any]:
    """Columns with one entry a block, sorted by contig and place; bits over A, C, G and T.

    Coordinates as in a genome browser: 1-based, both ends included, cut to the windows.
    """
    blocks = sides.after
    low, high = _extent(after, len(blocks.contigs))
    start = np.maximum(blocks.start, low[blocks.contig])
    end = np.minimum(blocks.start + blocks.size, high[blocks.contig])
    before = sides.before if sides.paired else None
    return {
        "contig": [blocks.contigs[i] for i in blocks.contig.tolist()],
        "start": (start + 1).tolist(),
        "end": end.tolist(),
        "bases": blocks.count.tolist(),
        "after": _bits(blocks.nats_acgt, blocks.count),
        "before": _bits(before.nats_acgt, before.count) if before is not None else None,
    }


def _extent(ledger: Ledger, contigs: int) -> tuple[np.ndarray, np.ndarray]:
    """Per contig the first base of its first window and the end of its last."""
    low, high = np.full(contigs, np.iinfo(np.int64).max), np.zeros(contigs, dtype=np.int64)
    np.minimum.at(low, ledger.windows[:, 1], ledger.windows[:, 2])
    np.maximum.at(high, ledger.windows[:, 1], ledger.windows[:, 3])
    return low, high


def _bits(nats: np.ndarray, count: np.ndarray) -> list[float]:
    return [float(value) for value in nats / (LN2 * count)]


def extremes(blocks: dict[str, Any], size: int) -> dict[str, list[dict[str, Any]]]:
    """The ``EXTREMES`` blocks that are predicted worst and best, of those with enough bases scored."""
    columns = [name for name, column in blocks.items() if column is not None]
    enough = [i for i, bases in enumerate(blocks["bases"]) if bases >= ENOUGH * size]
    ranked = sorted(enough, key=lambda i: (blocks["after"][i], i))
    most = min(EXTREMES, len(ranked) // 2)  # no block is both

    def named(chosen: list[int]) -> list[dict[str, Any]]:
        return [{"before": None, **{name: blocks[name][i] for name in columns}} for i in chosen]

    return {"worst": named(ranked[::-1][:most]), "best": named(ranked[:most])}
