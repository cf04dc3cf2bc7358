"""Markov models against the definition spelled out with dictionaries."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_data import read_genome

from genoctx.report import markov
from genoctx.report.markov import MarkovCounts, score, score_orders

LAMBDA = read_genome("lambda_phage.fa.gz")
WITH_BREAKS = LAMBDA.copy()
WITH_BREAKS[[0, 5, 6, 700, 704, 20_000, len(LAMBDA) - 1]] = 4
WITH_BREAKS[9_000:9_050] = 9


class SlowModel:
    """Counts in dictionaries, one base at a time, straight from the equation."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.words: Counter[tuple[int, ...]] = Counter()
        self.contexts: Counter[tuple[int, ...]] = Counter()

    def context(self, codes: list[int], at: int) -> tuple[int, ...]:
        first = at
        while first > 0 and at - first < self.order and codes[first - 1] < 4:
            first -= 1
        return tuple(codes[first:at])

    def add(self, codes: list[int]) -> None:
        for at, base in enumerate(codes):
            if base < 4:
                longest = self.context(codes, at)
                for k in range(len(longest) + 1):
                    context = longest[len(longest) - k :]
                    self.words[(*context, base)] += 1
                    self.contexts[context] += 1

    def probability(self, context: tuple[int, ...], base: int) -> float:
        shorter = self.probability(context[1:], base) if context else 0.25
        return (self.words[(*context, base)] + 16 * shorter) / (self.contexts[context] + 16)

    def score(self, codes: list[int]) -> list[float]:
        return [
            math.nan if at == 0 or base >= 4 else -math.log(self.probability(self.context(codes, at), base))
            for at, base in enumerate(codes)
        ]


@pytest.mark.parametrize("piece", [1 << 18, 97])
@pytest.mark.parametrize("order", [0, 1, 2, 5, 11])
def test_lambda_phage_scores_as_by_the_slow_definition(
    order: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markov, "PIECE", piece)
    train, test = WITH_BREAKS[:12_000], WITH_BREAKS[19_000:23_000]
    slow = SlowModel(order)
    slow.add(train.tolist())
    counts = MarkovCounts(order)
    counts.add(train)
    assert counts.bases == int((train < 4).sum())
    np.testing.assert_allclose(score(counts.model(), test), slow.score(test.tolist()), rtol=1e-12)


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=40), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(0, 4),
    st.integers(1, 13),
)
@settings(max_examples=60, deadline=None)
def test_any_stretches_score_as_by_the_slow_definition(
    stretches: list[list[int]], test: list[int], order: int, piece: int
) -> None:
    whole, markov.PIECE = markov.PIECE, piece
    try:
        slow, counts = SlowModel(order), MarkovCounts(4)
        for stretch in stretches:
            slow.add(stretch)
            counts.add(np.array(stretch, dtype=np.uint8))
        nats = score(counts.model(order), np.array(test, dtype=np.uint8))
    finally:
        markov.PIECE = whole
    np.testing.assert_allclose(nats, slow.score(test), rtol=1e-12)


def test_one_count_gives_the_model_of_every_order() -> None:
    counts = MarkovCounts(6)
    counts.add(WITH_BREAKS[:20_000])
    nats, scored = score_orders(counts.model(), WITH_BREAKS[20_000:])
    for order in range(7):
        alone = MarkovCounts(order)
        alone.add(WITH_BREAKS[:20_000])
        expected = score(alone.model(), WITH_BREAKS[20_000:])
        np.testing.assert_array_equal(score(counts.model(order), WITH_BREAKS[20_000:]), expected)
        assert nats[order] == pytest.approx(np.nansum(expected), rel=1e-10)
    assert scored == int((WITH_BREAKS[20_000:] < 4).sum())


def test_order_zero_is_composition() -> None:
    counts = MarkovCounts(0)
    counts.add(np.array([0] * 700 + [1] * 100 + [2] * 100 + [3] * 100, dtype=np.uint8))
    p = np.exp(-score(counts.model(), np.array([0, 0, 1, 2, 3], dtype=np.uint8)))
    assert math.isnan(p[0])
    np.testing.assert_allclose(p[1:], [704 / 1016, 104 / 1016, 104 / 1016, 104 / 1016], rtol=1e-12)


def test_counts_add_and_take_back() -> None:
    a, b, both = MarkovCounts(7), MarkovCounts(7), MarkovCounts(7)
    a.add(WITH_BREAKS[:9_020])
    b.add(LAMBDA[30_000:])
    both.add(LAMBDA[30_000:])
    both += a
    both -= b
    test = LAMBDA[9_000:12_000]
    np.testing.assert_array_equal(score(both.model(), test), score(a.model(), test))
    both += b
    assert not np.array_equal(score(both.model(), test), score(a.model(), test), equal_nan=True)


def test_nothing_before_the_window_and_nothing_after_a_base_matters() -> None:
    counts = MarkovCounts(8)
    counts.add(LAMBDA)
    model = counts.model()
    whole, window = score(model, LAMBDA), score(model, LAMBDA[1_000:3_000])
    assert math.isnan(window[0])
    np.testing.assert_array_equal(window[8:], whole[1_008:3_000])
    assert (window[1:8] != whole[1_001:1_008]).any()
    np.testing.assert_array_equal(score(model, LAMBDA[1_000:1_500]), window[:500])


def test_probabilities_over_the_four_bases_sum_to_one() -> None:
    counts = MarkovCounts(5)
    counts.add(LAMBDA)
    context = LAMBDA[40_000:40_011]
    ends = [np.append(context, np.uint8(base)) for base in range(4)]
    assert sum(math.exp(-score(counts.model(), end)[-1]) for end in ends) == pytest.approx(1, abs=1e-12)


def test_orders_out_of_reach_are_refused() -> None:
    for order in (-1, 13):
        with pytest.raises(ValueError):
            MarkovCounts(order)
    with pytest.raises(ValueError):
        MarkovCounts(3).model(4)
