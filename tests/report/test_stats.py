"""Intervals: they cover, pairing narrows them, and they say when there are too few blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_data import losses, make_ledger

from genoctx.errors import InputError, UsageError
from genoctx.report.blocks import Blocks, blocks_of, difference_of_bases, require_same_bases
from genoctx.report.stats import (
    LN2,
    Sampling,
    better_and_worse,
    bits,
    ratio,
    strata,
    t_quantile,
)

TRUTH = 1.9


def made_up(rng: np.random.Generator, per_contig: list[int], spread: float = 0.05) -> Blocks:
    """Blocks of unequal counts whose expected bits per base are TRUTH, smaller blocks being noisier."""
    contig = np.repeat(np.arange(len(per_contig)), per_contig)
    count = rng.integers(20_000, 65_536, len(contig))
    level = TRUTH + rng.standard_t(8, len(contig)) * spread * np.sqrt(65_536 / count)
    names = tuple(f"chr{i}" for i in range(len(per_contig)))
    nats = LN2 * level * count
    return Blocks(65_536, names, contig, np.arange(len(contig)) * 65_536, count, nats, nats - 0.01 * count)


@pytest.mark.parametrize(
    ("per_contig", "method"),
    [([12], "t"), ([4, 5, 3, 8], "t"), ([40], "bootstrap"), ([20, 9, 6, 5], "bootstrap")],
)
def test_intervals_cover_the_truth_as_often_as_they_say(per_contig: list[int], method: str) -> None:
    rng = np.random.default_rng(7)
    inside, tries = 0, 500
    for seed in range(tries):
        blocks = made_up(rng, per_contig)
        estimate = bits(blocks, blocks.nats_full, Sampling(0.9, 400, seed))
        assert estimate.method == method and estimate.low is not None and estimate.high is not None
        inside += estimate.low <= TRUTH <= estimate.high
    # four standard errors of a share of 0.9 in 500 tries are 0.054
    assert 0.85 <= inside / tries <= 0.95


def test_an_interval_over_blocks_is_wider_than_one_over_bases() -> None:
    windows = [("chr1", 0, 64 * 400)]
    nats = losses(windows, seed=3, spread=0.3)
    blocks = blocks_of(make_ledger(windows, nats), 64)
    half_width = bits(blocks, blocks.nats_full, Sampling()).half_width
    naive = 1.96 * nats[0].std() / math.sqrt(len(nats[0])) / LN2
    assert half_width is not None and half_width > 5 * naive


def test_a_paired_difference_is_much_narrower() -> None:
    rng = np.random.default_rng(0)
    for per_contig in ([60], [20]):
        before = made_up(rng, per_contig, spread=0.1)
        gain = LN2 * before.count * rng.normal(0.01, 0.005, len(before))
        after = before.nats_full - gain
        paired = bits(before, after - before.nats_full, Sampling())
        alone = bits(before, after, Sampling())
        assert paired.half_width is not None and alone.half_width is not None
        assert paired.half_width < alone.half_width / 10
        assert paired.high is not None and paired.high < 0 and paired.value == pytest.approx(-0.01, abs=0.003)


def test_columns_over_the_same_blocks_share_their_draws() -> None:
    """A constant shift in every block moves the interval by exactly that, and has no width itself."""
    blocks = made_up(np.random.default_rng(1), [20, 30])
    shifted = bits(blocks, blocks.nats_full - 0.25 * LN2 * blocks.count, Sampling())
    there = bits(blocks, blocks.nats_full, Sampling())
    assert shifted.low == pytest.approx((there.low or 0) - 0.25, abs=1e-12)
    assert shifted.high == pytest.approx((there.high or 0) - 0.25, abs=1e-12)
    constant = bits(blocks, -0.25 * LN2 * blocks.count, Sampling())
    assert constant.low == pytest.approx(-0.25, abs=1e-12) and constant.half_width == pytest.approx(
        0, abs=1e-12
    )


def test_the_seed_decides() -> None:
    blocks = made_up(np.random.default_rng(1), [40])
    first, again, other = (bits(blocks, blocks.nats_full, Sampling(seed=seed)) for seed in (0, 0, 1))
    assert first == again and first.low != other.low and first.value == other.value


def test_confidence_widens() -> None:
    for per_contig in ([12], [50]):
        blocks = made_up(np.random.default_rng(1), per_contig)
        widths = [bits(blocks, blocks.nats_full, Sampling(c)).half_width or 0 for c in (0.5, 0.9, 0.99)]
        assert widths == sorted(widths) and widths[0] < widths[2] / 2


def test_t_and_bootstrap_meet() -> None:
    """The formula for few blocks is the same quantity: from many blocks both give one width."""
    blocks = made_up(np.random.default_rng(2), [200])
    value = blocks.nats_full.sum() / (LN2 * blocks.count.sum())
    residual = blocks.nats_full - value * LN2 * blocks.count
    error = math.sqrt(200 / 199 * (residual**2).sum()) / (LN2 * blocks.count.sum())
    half_width = bits(blocks, blocks.nats_full, Sampling(draws=5000)).half_width
    assert half_width == pytest.approx(1.96 * error, rel=0.06)


def test_the_number_of_blocks_decides_the_method() -> None:
    methods = {}
    for n in (1, 7, 8, 30, 31):
        blocks = made_up(np.random.default_rng(n), [n])
        estimate = bits(blocks, blocks.nats_full, Sampling())
        methods[n] = estimate.method
        assert (estimate.low is None) == (estimate.half_width is None) == (n < 8)
        assert estimate.value == pytest.approx(blocks.nats_full.sum() / LN2 / blocks.count.sum(), rel=1e-12)
        assert estimate.blocks == n and estimate.bases == blocks.count.sum()
    assert methods == {1: "none", 7: "none", 8: "t", 30: "t", 31: "bootstrap"}


def test_small_contigs_are_drawn_together() -> None:
    blocks = made_up(np.random.default_rng(0), [8, 1, 20, 7])
    assert [len(group) for group in strata(blocks)] == [8, 20, 8]
    assert strata(blocks)[2].tolist() == [8, *range(29, 36)]


def test_strata_keep_differences_between_contigs_out_of_the_interval() -> None:
    rng = np.random.default_rng(0)
    blocks = made_up(rng, [20, 20], spread=0.001)
    uneven = blocks.nats_full + LN2 * blocks.count * np.where(blocks.contig == 0, 0.5, -0.5)
    half_width = bits(blocks, uneven, Sampling()).half_width
    assert half_width is not None and half_width < 0.1


def test_a_ratio_is_not_a_mean_of_ratios() -> None:
    blocks = made_up(np.random.default_rng(0), [2])
    estimate = ratio(np.array([1.0, 9.0]), np.array([1.0, 3.0]), blocks, Sampling())
    assert estimate.value == 2.5


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.30265), (0.95, 7, 2.36462), (0.95, 29, 2.04523), (0.99, 10, 3.16927)],
)
def test_quantiles_are_those_of_the_tables(confidence: float, freedom: int, expected: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-5)


def test_ledger_rows_become_blocks_of_the_contig_not_of_the_window() -> None:
    windows = [("chr1", 100, 700), ("chr1", 700, 1000), ("chr2", 0, 257)]
    nats = losses(windows, seed=1)
    blocks = blocks_of(make_ledger(windows, nats), 512)
    assert list(zip(blocks.contig.tolist(), blocks.start.tolist(), strict=True)) == [(0, 0), (0, 512), (1, 0)]
    assert blocks.count.tolist() == [512 - 101, 700 - 512 + 299, 256]
    np.testing.assert_allclose(
        blocks.nats_full,
        [nats[0][:411].sum(), nats[0][411:].sum() + nats[1].sum(), nats[2].sum()],
        rtol=1e-12,
    )
    for size in (63, 96, 0):
        with pytest.raises(UsageError, match="cannot be made"):
            blocks_of(make_ledger(windows, nats), size)


def test_only_equal_bases_are_paired() -> None:
    windows = [("chr1", 0, 640), ("chr2", 0, 257)]
    whole = make_ledger(windows, losses(windows, 1))
    require_same_bases(whole, make_ledger(windows, losses(windows, 2)))
    other_order = make_ledger(windows, losses(windows, 2), contigs=["chr2", "chr0", "chr1"])
    assert difference_of_bases(whole, other_order) == ""
    fewer = make_ledger(windows[:1], losses(windows[:1], 1))
    with pytest.raises(InputError, match="15 and 10 blocks"):
        require_same_bases(whole, fewer)
    shorter = [("chr1", 0, 640), ("chr2", 0, 250)]
    with pytest.raises(InputError, match="15 and 14 blocks"):
        require_same_bases(whole, make_ledger(shorter, losses(shorter, 1)))
    one_less = [("chr1", 1, 640), ("chr2", 0, 257)]
    with pytest.raises(InputError, match="63 and 62 scored bases in chr1:1-64"):
        require_same_bases(whole, make_ledger(one_less, losses(one_less, 1)))


def test_signs_are_counted() -> None:
    assert better_and_worse(np.array([-1.0, -0.5, 0.0, 2.0])) == (2, 1)


@pytest.mark.parametrize("setting", [{"confidence": 1.0}, {"confidence": 0.2}, {"draws": 20}])
def test_settings_that_mean_nothing_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**setting)  # type: ignore[arg-type]
