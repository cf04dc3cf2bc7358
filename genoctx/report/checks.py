"""Two checks on a model's probabilities: are they honest, and do both strands agree?"""

from __future__ import annotations

from typing import Any

import numpy as np

from genoctx.report.blocks import Blocks, blocks_of
from genoctx.report.ledger import Ledger, with_contigs
from genoctx.report.stats import LN2, Sampling, bits_apart, ratio
from genoctx.report.strata import LETTERS, PROBABILITY_BINS


def calibration(ledger: Ledger) -> dict[str, Any] | None:
    """The reliability curve of the four-way prediction and its expected calibration error.

    The error is the mean distance between the probability given and the share of hits, over bins of
    probability, weighted by the probabilities in them (four a base). Guo et al. 2017, with all four classes.
    """
    found = ledger.calibration
    if found is None:
        return None
    total = int(found.count.sum())
    bins = [
        {
            "low": i / PROBABILITY_BINS,
            "high": (i + 1) / PROBABILITY_BINS,
            "count": int(n),
            "probability": float(found.p_sum[i] / n),
            "hit_rate": float(found.hits[i] / n),
        }
        for i, n in enumerate(found.count)
        if n
    ]
    error = float(np.abs(found.hits - found.p_sum).sum() / total)
    return {"error": error, "bases": total // LETTERS, "bins": bins}


def strands(forward: Ledger, reverse: Ledger, size: int, sampling: Sampling) -> dict[str, Any]:
    """Loss over A, C, G and T of the windows read forward and as reverse complement, their mean and gap.

    Paired by block; the two differ in one base a window, the first to be read. Both ledgers must number their
    contigs alike.
    """
    contigs = tuple(dict.fromkeys([*forward.contigs, *reverse.contigs]))
    a, b = _aligned(*(blocks_of(with_contigs(ledger, contigs), size) for ledger in (forward, reverse)))
    both = Blocks(a.size, a.contigs, a.contig, a.start, a.count + b.count, a.nats_full, a.nats_acgt)
    mean = ratio(a.nats_acgt + b.nats_acgt, LN2 * both.count, both, sampling)
    gap = bits_apart((a.nats_acgt, a.count), (b.nats_acgt, b.count), a, sampling)
    return {
        "forward": ratio(a.nats_acgt, LN2 * a.count, a, sampling).as_dict(),
        "reverse": ratio(b.nats_acgt, LN2 * b.count, b, sampling).as_dict(),
        "mean": mean.as_dict(),
        "gap": gap.as_dict(),
    }


def _aligned(a: Blocks, b: Blocks) -> tuple[Blocks, Blocks]:
    """Both over the blocks that either has, with nothing in those that it has not."""
    keys = [np.stack([blocks.contig, blocks.start], axis=1) for blocks in (a, b)]
    union = np.unique(np.concatenate(keys), axis=0)
    place = {tuple(key): i for i, key in enumerate(union.tolist())}
    spread = []
    for blocks, key in zip((a, b), keys, strict=True):
        at = [place[tuple(each)] for each in key.tolist()]
        columns = []
        for column in (blocks.count, blocks.nats_full, blocks.nats_acgt):
            wide = np.zeros(len(union), dtype=column.dtype)
            wide[at] = column
            columns.append(wide)
        spread.append(Blocks(blocks.size, blocks.contigs, union[:, 0], union[:, 1], *columns))
    return spread[0], spread[1]
