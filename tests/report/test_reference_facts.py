"""Three facts about real DNA that every report rests on, measured on Escherichia coli K-12 MG1655.

The first half of the chromosome is counted, the second half scored.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_data import HEADER, read_genome

from genoctx.report.baselines import baseline_ledger
from genoctx.report.blocks import blocks_of
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.report.markov import MarkovCounts
from genoctx.report.stats import Sampling, bits

BLOCK = 65536
ECOLI = read_genome("ecoli_k12_mg1655.fna.gz")
HALF = len(ECOLI) // 2
COUNTS = MarkovCounts(11)
COUNTS.add(ECOLI[:HALF])


def second_half(order: int, length: int = len(ECOLI) - HALF) -> Ledger:
    """The baseline of ``order`` on the first ``length`` bases of the second half, a contig and one window."""
    builder = LedgerBuilder(HEADER, ["half"], BLOCK)
    builder.window(0, "half", 0, length)
    builder.add(0, "half", np.arange(1, length), np.zeros(length - 1), np.zeros(length - 1))
    return baseline_ledger(
        builder.build(), lambda _, start, end: ECOLI[HALF:][start:end], COUNTS.model(order)
    )


@pytest.mark.parametrize(("order", "expected"), [(0, 2.000), (5, 1.937), (11, 2.011)])
def test_bits_per_base_of_the_second_half(order: int, expected: float) -> None:
    assert second_half(order).totals().bits_acgt == pytest.approx(expected, abs=0.0005)


def test_a_standard_error_over_bases_is_six_times_too_small() -> None:
    """Over the 35 whole blocks. Where blocks begin elsewhere the factor is between 5.1 and 6.4."""
    ledger = second_half(5, 35 * BLOCK)
    totals = ledger.totals()
    mean = totals.nats_full_sum / totals.count
    over_bases = math.sqrt((totals.nats_full_sq_sum / totals.count - mean**2) / totals.count) / math.log(2)
    blocks = blocks_of(ledger, BLOCK)
    residual = blocks.nats_full - mean * blocks.count
    n = len(blocks)
    over_blocks = math.sqrt(n / (n - 1) * (residual**2).sum()) / (math.log(2) * totals.count)
    assert over_bases == pytest.approx(0.00027, abs=0.00001)
    assert over_blocks / over_bases == pytest.approx(6.4, abs=0.05)
    half_width = bits(blocks, blocks.nats_full, Sampling()).half_width
    assert half_width == pytest.approx(1.96 * over_blocks, rel=0.1), "the report's interval is that of blocks"
