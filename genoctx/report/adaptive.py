"""What a compressor knows: a model of DNA that learns within one window alone, as its bases go by.

Two experts, one on the other. The first counts words of up to 12 bases, on both strands, in what of the
window lies behind, and backs each order off to the shorter one as the trained baselines do
(``markov.py``), as far as that has paid so far. The second looks for the last earlier place, on either
strand, where the ``COPY`` bases before a base stood, and predicts that what followed there follows again.
How far it is believed is learned too: from how often such a prediction came true before, at an equally long
run of hits and an equal probability by the first expert. Repeats, inverted ones included, are what it gains;
a language model that does no better than this on a window used its length for nothing more.

Everything is a sort and a cumulative sum: a window of 512K bases takes seconds, and about 200 bytes a base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from genoctx.report.context_ledger import piece_starts
from genoctx.report.markov import BACKOFF, bases_before

ORDER = 11
COPY = (12, 24)
"""Bases that a copy must have in common with its original; the longer one has the last word."""
RUNS = 8
CHANCES = 16
"""Predictions by copy are of one kind where their run of hits and their probability fall into one of these
classes."""
MOST_EVIDENCE = 30.0
"""In nats: beyond it a posterior probability is 0 or 1."""

_RADIX_WORDS = 1 << 16
"""numpy sorts 16-bit numbers in one pass over them, longer ones in many."""


@dataclass(frozen=True)
class AdaptiveModel:
    """Nothing is learned beforehand: a window's first base has probability 1/4."""

    order: int = ORDER
    copy: tuple[int, ...] = COPY

    def about(self) -> dict[str, Any]:
        """JSON values for a ledger's header."""
        return {
            "model": f"adaptive order {self.order} and repeat copy",
            "order": self.order,
            "backoff": BACKOFF,
            "copy": list(self.copy),
        }

    def nats(self, codes: np.ndarray, first: bool = False) -> np.ndarray:
        """Negative log likelihood of each base of one window of uint8 ``codes``, float64 nats.

        NaN where there is no target: at breaks (codes above 3) and, unless ``first``, at the first base.
        """
        p_NA = context_chances(codes, self.order)
        for length in self.copy:
            p_NA = copy_chances(codes, p_NA, length)
        target = codes < 4
        nats = np.full(len(codes), np.nan)
        nats[target] = -np.log(p_NA[target, codes[target]])
        if not first:
            nats[:1] = np.nan
        return nats

    def nats_of_second_half(self, codes: np.ndarray, context: int) -> np.ndarray:
        """Nats of the second half of one window read in pieces of ``context`` bases (``context_ledger.py``),
        each of which begins with nothing learned: float64 [bases / 2], NaN where there is no target."""
        half = context // 2
        pieces = [codes[start : start + context] for start in piece_starts(len(codes), context)]
        return np.concatenate([self.nats(piece)[half:] for piece in pieces])


def context_chances(codes: np.ndarray, order: int) -> np.ndarray:
    """Probability of A, C, G, T at each base, from the words on both strands of what lies before it:
    float64 [bases, 4]."""
    known = bases_before(codes)
    p_NA = np.full((len(codes), 4), 0.25)
    for k in range(order + 1):
        seen_NA = _seen_after_contexts(codes, known, k)
        times = seen_NA.sum(axis=1)
        longer_NA = (seen_NA + BACKOFF * p_NA) / (times + BACKOFF)[:, None]
        worth = _worth(codes, (codes < 4) & (known >= k), p_NA, longer_NA, times)
        p_NA += worth[:, None] * (longer_NA - p_NA)
    return p_NA


def _worth(
    codes: np.ndarray, here: np.ndarray, shorter_NA: np.ndarray, longer_NA: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """How far the longer context is believed at each base, 0 where it is not ``here``: float64 [bases].

    The posterior probability, from even odds, that it predicts better than the shorter one where a context
    was seen about as often (equal powers of 2), judged by the bases before.
    """
    at = np.flatnonzero(here)
    gain = np.log(longer_NA[at, codes[at]] / shorter_NA[at, codes[at]])
    order, group = _grouped(np.frexp(times[at].astype(np.float64))[1], _RADIX_WORDS)
    evidence = np.empty_like(gain)
    evidence[order] = _sums_before(gain[order][:, None], group)[:, 0]
    worth = np.zeros(len(codes))
    worth[at] = 1 / (1 + np.exp(-np.clip(evidence, -MOST_EVIDENCE, MOST_EVIDENCE)))
    return worth


def _seen_after_contexts(codes: np.ndarray, known: np.ndarray, k: int) -> np.ndarray:
    """How often each base followed the ``k`` bases before a base earlier, on either strand: [bases, 4].

    When base i has been read, two words of k + 1 bases have been seen: the one that ends at i, and its
    reverse complement, whose last base is the complement of base i - k.
    """
    n = len(codes)
    if n <= k:
        return np.zeros((n, 4), dtype=np.int32)
    whole = (known >= k) & (codes < 4)
    letters = np.where(codes < 4, codes, 0).astype(np.int64)
    oldest = np.zeros(n, dtype=np.int64)
    oldest[k:] = letters[: n - k] if k else letters
    context = np.zeros((n, 2), dtype=np.int64)  # forward, reverse; base i's two words stand side by side
    for back in range(1, k + 1):
        context[back:, 0] += letters[: n - back] << 2 * (back - 1)
    for back in range(k):
        context[back:, 1] += (3 - letters[: n - back]) << 2 * (k - 1 - back)
    follows = np.stack([letters, 3 - oldest], axis=1).ravel()
    counted = np.repeat(whole, 2)
    order, group = _grouped(context.ravel(), 4**k)
    one_EA = np.zeros((2 * n, 4), dtype=np.int32)
    one_EA[counted[order], follows[order][counted[order]]] = 1
    before_EA = _sums_before(one_EA, group)
    seen = np.empty((2 * n, 4), dtype=np.int32)
    seen[order] = before_EA
    return seen[::2]


def copy_chances(codes: np.ndarray, p_NA: np.ndarray, length: int) -> np.ndarray:
    """``p_NA`` corrected where the ``length`` bases before a base stood earlier: float64 [bases, 4].

    The base predicted there gets the share of hits among earlier predictions of its kind, with ``BACKOFF``
    hits and misses as ``p_NA`` has them; the others share the rest as before.
    """
    predicted = predicted_by_copy(codes, length)
    at = np.flatnonzero((predicted < 4) & (codes < 4))
    guess = predicted[at].astype(np.int64)
    hit = guess == codes[at]
    believed = p_NA[at, guess]
    kind = _run_class(at, hit) * CHANCES + np.minimum((believed * CHANCES).astype(np.int64), CHANCES - 1)
    order, group = _grouped(kind, RUNS * CHANCES)
    ones = np.stack([hit, np.ones_like(hit)], axis=1)[order].astype(np.int64)
    before = np.empty_like(ones)
    before[order] = _sums_before(ones, group)
    chance = (before[:, 0] + BACKOFF * believed) / (before[:, 1] + BACKOFF)
    corrected = p_NA.copy()
    corrected[at] *= ((1 - chance) / (1 - believed))[:, None]
    corrected[at, guess] = chance
    return corrected


def predicted_by_copy(codes: np.ndarray, length: int) -> np.ndarray:
    """The base that followed the last earlier occurrence of the ``length`` bases before each base: uint8.

    An occurrence on the other strand counts: then it is the complement of the base before it. 4 where there
    is none, or no base.
    """
    n = len(codes)
    predicted = np.full(n, 4, dtype=np.uint8)
    if n <= length:
        return predicted
    forward, reverse, whole = _both_strands(codes, length)
    ends = np.flatnonzero(whole) + length - 1
    forward, reverse = forward[whole], reverse[whole]
    word = np.minimum(forward, reverse)
    order = np.argsort(word, kind="stable")
    again = word[order[1:]] == word[order[:-1]]
    now, earlier = order[1:][again], order[:-1][again]
    target, source = ends[now] + 1, ends[earlier]
    same = (forward[now] <= reverse[now]) == (forward[earlier] <= reverse[earlier])
    onward = codes[np.minimum(source + 1, n - 1)]
    before = source - length
    complement = 3 - np.minimum(codes[np.maximum(before, 0)], 3)
    complement[(before < 0) | (codes[np.maximum(before, 0)] > 3)] = 4
    guess = np.where(same, np.minimum(onward, 4), complement)
    inside = target < n
    predicted[target[inside]] = guess[inside]
    return predicted


def _both_strands(codes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words of ``length`` bases as numbers, their reverse complements', and which hold no break."""
    n = len(codes) - length + 1
    letters = np.where(codes < 4, codes, 0).astype(np.uint64)
    forward, reverse = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.uint64)
    for i in range(length):
        here = letters[i : i + n]
        forward |= here << np.uint64(2 * (length - 1 - i))
        reverse |= (np.uint64(3) - here) << np.uint64(2 * i)
    breaks = np.concatenate([[0], np.cumsum(codes > 3)])
    return forward, reverse, breaks[length:] == breaks[:-length]


def _run_class(at: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """How long the run of hits right before each prediction is: 0, 1, 2-3, 4-7, .. as 0, 1, 2, 3, .."""
    index = np.arange(len(at))
    new = np.ones(len(at), dtype=bool)
    new[1:] = (at[1:] != at[:-1] + 1) | ~hit[:-1]
    run = index - np.maximum.accumulate(np.where(new, index, 0))
    return np.minimum(np.frexp(run.astype(np.float64))[1], RUNS - 1)


def _grouped(key: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """A stable order by ``key`` (below ``keys``), and for each place in it where its group begins."""
    order = np.argsort(key.astype(np.uint16 if keys <= _RADIX_WORDS else np.uint32), kind="stable")
    ordered = key[order]
    begins = np.ones(len(key), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    return order, np.maximum.accumulate(np.where(begins, np.arange(len(key)), 0))


def _sums_before(columns: np.ndarray, group: np.ndarray) -> np.ndarray:
    """For each row of ``columns`` [rows, n] the sum of the rows before it in its group."""
    before = np.zeros((len(columns) + 1, columns.shape[1]), dtype=columns.dtype)
    np.cumsum(columns, axis=0, out=before[1:])
    return before[:-1] - before[group]
