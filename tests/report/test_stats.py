"""Intervals: they cover, pairing narrows them, and they say when there are too few blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_data import losses, make_ledger

from genoctx.errors import InputError, UsageError
from genoctx.report.bca import acceleration, bca_interval, corrected_level, median_bias
from genoctx.report.blocks import Blocks, blocks_of, difference_of_bases, require_same_bases
from genoctx.report.stats import (
    BCA_BLOCKS,
    LN2,
    Sampling,
    better_and_worse,
    bits,
    chance,
    intervals,
    ratio,
    standard_error,
    strata,
)
from genoctx.report.student import t_outside, t_quantile

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
    for n in (1, 7, 8, 30, 31, BCA_BLOCKS, BCA_BLOCKS + 1):
        blocks = made_up(np.random.default_rng(n), [n])
        estimate = bits(blocks, blocks.nats_full, Sampling())
        methods[n] = estimate.method
        assert (estimate.low is None) == (estimate.half_width is None) == (n < 8)
        assert estimate.value == pytest.approx(blocks.nats_full.sum() / LN2 / blocks.count.sum(), rel=1e-12)
        assert estimate.blocks == n and estimate.bases == blocks.count.sum()
    assert methods == {1: "none", 7: "none", 8: "t", 30: "t", 31: "bootstrap", 200: "bootstrap", 201: "bca"}


def test_every_method_that_the_blocks_allow_stands_beside_the_others() -> None:
    found = {}
    for n in (7, 20, 40, 300):
        blocks = made_up(np.random.default_rng(n), [n])
        made = intervals(blocks.nats_full, blocks, Sampling())
        used = bits(blocks, blocks.nats_full, Sampling())
        assert used.method == "none" or made[used.method] == (used.low, used.high)
        found[n] = list(made)
    both = ["t", "bootstrap", "bca"]
    assert found == {7: [], 20: ["t"], 40: both, 300: both}


def test_a_skew_tail_moves_the_corrected_interval_towards_it() -> None:
    rng = np.random.default_rng(5)
    blocks = made_up(rng, [250])
    nats = LN2 * blocks.count * (1.9 + rng.exponential(0.1, 250) ** 2)
    made = intervals(nats, blocks, Sampling(draws=4000))
    assert made["bca"][0] > made["bootstrap"][0] and made["bca"][1] > made["bootstrap"][1]
    even = intervals(
        np.concatenate([nats[:125], 4 * LN2 * blocks.count[125:] - nats[:125]]), blocks, Sampling()
    )
    assert even["bca"] == pytest.approx(even["bootstrap"], abs=0.15 * (even["t"][1] - even["t"][0]))


# BCa and t against what is printed elsewhere


SPATIAL = [
    48,
    36,
    20,
    29,
    42,
    42,
    20,
    42,
    22,
    41,
    45,
    14,
    6,
    0,
    33,
    28,
    34,
    4,
    32,
    24,
    47,
    41,
    24,
    26,
    30,
    41,
]
"""Efron and Tibshirani 1993, An Introduction to the Bootstrap, table 14.1, column A."""


def test_the_corrected_interval_is_the_published_one() -> None:
    """The variance of SPATIAL in chapter 14, from 2,000 draws: 171.5, z0 0.146, a 0.061, so that the bounds of
    90 % are the draws at 0.110 and 0.985, (115.8, 259.6), where percentiles are (100.8, 233.9)."""
    x = np.array(SPATIAL, dtype=np.float64)
    influence, everything = (x - x.mean()) ** 2 - x.var(), [np.arange(len(x))]
    assert x.var() == pytest.approx(171.5, abs=0.05)
    skew = acceleration(influence, everything)
    assert skew == pytest.approx(0.061, abs=0.0005)
    assert [corrected_level(0.146, skew, z) for z in (-1.644854, 1.644854)] == pytest.approx(
        [0.110, 0.985], abs=5e-4
    )
    drawn = x[np.random.default_rng(0).integers(0, len(x), (40_000, len(x)))].var(axis=1)
    assert np.quantile(drawn, [0.05, 0.95]) == pytest.approx([100.8, 233.9], abs=3)
    assert np.quantile(drawn, [0.110, 0.985]) == pytest.approx([115.8, 259.6], abs=3)
    bias = median_bias(x.var(), drawn)
    error = math.sqrt(0.25 / 2000) / 0.394  # of a z0 of about 0.15 from 2,000 draws
    assert bias == pytest.approx(0.146, abs=3 * error)
    levels = [corrected_level(bias, skew, z) for z in (-1.6448536269514722, 1.6448536269514722)]
    assert bca_interval(x.var(), drawn, influence, everything, 0.9) == pytest.approx(
        np.quantile(drawn, levels)
    )


def test_draws_without_bias_or_skewness_give_percentiles() -> None:
    drawn = np.arange(-999.5, 1000)
    found = bca_interval(0.0, drawn, np.array([-1.0, 0, 1]), [np.arange(3)], 0.9)
    assert found == pytest.approx(np.quantile(drawn, [0.05, 0.95]).tolist(), abs=1e-6)
    assert median_bias(5000.0, drawn) == pytest.approx(3.4807564, rel=1e-6), (
        "finite where no draw lies beyond"
    )


def test_acceleration_is_that_of_each_group() -> None:
    """Values of the groups' own levels; a constant has none."""
    one = np.array([0.0, 0.0, 0.0, 4.0])
    groups = [np.arange(4), np.arange(4, 8)]
    wanted = 2 * (27 - 3) / (6 * (2 * 12) ** 1.5)
    assert acceleration(np.concatenate([one, one + 100]), groups) == pytest.approx(wanted, rel=1e-12)
    assert acceleration(np.ones(8), groups) == 0


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (1.0, 1, 0.5),
        (12.706204736432095, 1, 0.05),
        (2.2281388519649385, 10, 0.05),
        (4.586893858702636, 10, 0.001),
        (1.2, 2, 1 - 1.2 / math.sqrt(2 + 1.2**2)),
        (40.0, 2, 1 - 40 / math.sqrt(2 + 40**2)),
        (0.3, 4, 1 - 0.3 / math.sqrt(4.09) * (1 + 2 / 4.09)),
        (0.0, 7, 1.0),
    ],
)
def test_chances_are_those_of_closed_forms_and_tables(t: float, freedom: int, p: float) -> None:
    assert t_outside(t, freedom) == pytest.approx(p, rel=1e-9)


def test_chances_far_out_and_of_many_blocks_are_no_zeros() -> None:
    assert t_outside(1e6, 1) == pytest.approx(2 / (math.pi * 1e6), rel=1e-6)
    normal = math.erfc(6 / math.sqrt(2))
    assert t_outside(6, 5_000_000) == pytest.approx(normal, rel=1e-4)
    for freedom in (1, 8, 100, 20_000):
        assert t_outside(t_quantile(0.99, freedom), freedom) == pytest.approx(0.01, rel=1e-9)


def test_a_difference_of_nothing_is_as_often_by_chance_as_its_probability_says() -> None:
    rng = np.random.default_rng(3)
    blocks = made_up(rng, [25, 15])
    found = [chance(LN2 * blocks.count * rng.normal(0, 0.01, 40), blocks) for _ in range(400)]
    # four standard errors of shares of 0.1 and 0.5 in 400
    assert np.mean([p < 0.1 for p in found]) == pytest.approx(0.1, abs=0.06)  # type: ignore[operator]
    assert np.mean([p < 0.5 for p in found]) == pytest.approx(0.5, abs=0.1)  # type: ignore[operator]


def test_a_chance_meets_the_interval_at_its_confidence() -> None:
    """An interval of Student's t that just reaches zero has p = 1 - confidence."""
    blocks = made_up(np.random.default_rng(1), [20])
    error = standard_error(blocks.nats_full, blocks)
    assert error is not None
    value = blocks.nats_full.sum() / (LN2 * blocks.count.sum())
    edge = blocks.nats_full - (value - t_quantile(0.95, 19) * error) * LN2 * blocks.count
    assert chance(edge, blocks) == pytest.approx(0.05, rel=1e-6)
    few = made_up(np.random.default_rng(1), [7])
    assert chance(few.nats_full, few) is None and standard_error(few.nats_full, few) is None
    assert chance(0 * blocks.nats_full, blocks) == 1


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
