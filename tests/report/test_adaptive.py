"""What a compressor knows: against a slow model that reads base by base, and on real repeats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_data import read_genome

from genoctx.genome.alphabet import reverse_complement
from genoctx.report import adaptive
from genoctx.report.adaptive import AdaptiveModel, context_chances, copy_chances, predicted_by_copy
from genoctx.report.markov import BACKOFF

LAMBDA = read_genome("lambda_phage.fa.gz")


def with_breaks(length: int, seed: int) -> np.ndarray:
    """Random bases, a repeat and an inverted repeat, and breaks."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, length).astype(np.uint8)
    third = length // 3
    codes[third : third + 60] = codes[5:65]
    codes[2 * third : 2 * third + 60] = 3 - codes[20:80][::-1]
    codes[[90, 91, third + 70]] = 4
    return codes


def slow_chances(codes: np.ndarray, order: int) -> np.ndarray:
    """``context_chances`` with a dictionary per order, one base after the other."""
    seen: list[dict[tuple[int, ...], np.ndarray]] = [{} for _ in range(order + 1)]
    evidence: list[dict[int, float]] = [{} for _ in range(order + 1)]
    found = np.zeros((len(codes), 4))
    known = 0
    for i, code in enumerate(codes.tolist()):
        p = np.full(4, 0.25)
        gains = []
        for k in range(order + 1):
            if k > known or code > 3:
                continue
            counts = seen[k].get(tuple(codes[i - k : i].tolist()), np.zeros(4))
            longer = (counts + BACKOFF * p) / (counts.sum() + BACKOFF)
            kind = int(counts.sum()).bit_length()
            gains.append((k, kind, math.log(longer[code] / p[code])))
            worth = 1 / (1 + math.exp(-max(-30, min(30, evidence[k].get(kind, 0.0)))))
            p = p + worth * (longer - p)
        found[i] = p
        for k, kind, gain in gains:
            evidence[k][kind] = evidence[k].get(kind, 0.0) + gain
        if code < 4:
            for k in range(min(order, known) + 1):
                word = codes[i - k : i + 1].tolist()
                other = [3 - letter for letter in reversed(word)]
                for *context, last in (word, other):
                    seen[k].setdefault(tuple(context), np.zeros(4))[last] += 1
        known = known + 1 if code < 4 else 0
    return found


def slow_copy(codes: np.ndarray, length: int) -> np.ndarray:
    """``predicted_by_copy`` by comparing with every earlier word."""
    predicted = np.full(len(codes), 4, dtype=np.uint8)
    for i in range(length, len(codes)):
        word = codes[i - length : i]
        if (word > 3).any():
            continue
        other = 3 - word[::-1]
        for end in range(i - 2, length - 2, -1):
            earlier = codes[end - length + 1 : end + 1]
            if np.array_equal(earlier, word):
                predicted[i] = min(4, codes[end + 1])
                break
            if np.array_equal(earlier, other):
                before = codes[end - length] if end >= length else 4
                predicted[i] = 3 - before if before < 4 else 4
                break
    return predicted


@pytest.mark.parametrize("order", [0, 2, 9])
def test_contexts_are_those_of_reading_base_by_base(order: int) -> None:
    codes = with_breaks(400, order)
    here = codes < 4
    np.testing.assert_allclose(
        context_chances(codes, order)[here], slow_chances(codes, order)[here], rtol=1e-9
    )


@pytest.mark.parametrize("length", [11, 12])
def test_copies_are_those_of_reading_base_by_base(length: int) -> None:
    codes = with_breaks(400, length)
    expected = slow_copy(codes, length)
    np.testing.assert_array_equal(predicted_by_copy(codes, length), expected)
    assert (expected < 4).sum() > 60


def test_probabilities_add_up_and_nothing_is_seen_too_early() -> None:
    codes = np.concatenate([LAMBDA[:3000], [4], LAMBDA[500:2500], 3 - LAMBDA[:1500][::-1]]).astype(np.uint8)
    p_NA = context_chances(codes, adaptive.ORDER)
    for length in adaptive.COPY:
        p_NA = copy_chances(codes, p_NA, length)
    np.testing.assert_allclose(p_NA.sum(axis=1), 1, rtol=1e-12)
    assert p_NA.min() > 0
    nats = AdaptiveModel().nats(codes)
    for cut in (1, 700, 3500, 5600):
        changed = codes.copy()
        changed[cut:] = (changed[cut:] + 1) % 4
        np.testing.assert_allclose(AdaptiveModel().nats(changed)[:cut], nats[:cut], rtol=1e-9)


def test_repeats_on_either_strand_are_learned_within_a_window() -> None:
    alone = np.nansum(AdaptiveModel().nats(LAMBDA[:8000]))
    for again in (LAMBDA[:8000], 3 - LAMBDA[:8000][::-1]):
        both = np.nansum(AdaptiveModel().nats(np.concatenate([LAMBDA[:8000], again])))
        assert both < alone + 0.15 * 8000 * math.log(2)


def test_it_knows_real_dna_better_than_a_uniform_guess() -> None:
    yeast = read_genome("yeast_r64_chrI.fna.gz")
    every = np.arange(len(yeast))
    p_NA = context_chances(yeast, adaptive.ORDER)
    bits = [-np.log2(p_NA[every, yeast]).mean()]
    for length in adaptive.COPY:
        p_NA = copy_chances(yeast, p_NA, length)
        bits.append(-np.log2(p_NA[every, yeast]).mean())
    assert 1.93 > bits[0] > bits[1] + 0.03 > bits[2] + 0.03
    assert bits[2] == pytest.approx(1.871, abs=0.005)


def test_what_is_no_target_has_no_loss() -> None:
    codes = np.array([0, 1, 4, 2, 3], dtype=np.uint8)
    assert np.isnan(AdaptiveModel().nats(codes)).tolist() == [True, False, True, False, False]
    assert np.isnan(AdaptiveModel().nats(codes, first=True)).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("context", [80, 1000, 4000])
def test_a_second_half_is_read_in_pieces_that_know_nothing(context: int) -> None:
    codes = LAMBDA[4000:8000].copy()
    codes[2100:2120] = 4
    found = AdaptiveModel().nats_of_second_half(codes, context)
    assert len(found) == 2000 and np.flatnonzero(np.isnan(found)).tolist() == list(range(100, 120))
    for start in range(2000 - context // 2, 4001 - context, context // 2):
        alone = AdaptiveModel().nats(codes[start : start + context])
        at = start + context // 2 - 2000
        np.testing.assert_array_equal(found[at : at + context // 2], alone[context // 2 :])


def test_more_context_helps_where_there_is_a_copy_far_behind() -> None:
    """The second half of a window is the reverse complement of its first: only a long context holds both."""
    first = LAMBDA[:4096]
    codes = np.concatenate([first, reverse_complement(first)])
    bits = [AdaptiveModel().nats_of_second_half(codes, c).mean() / np.log(2) for c in (512, 8192)]
    assert bits[0] > 1.8 and bits[1] < 0.3
