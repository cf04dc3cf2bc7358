"""Interpolated Markov models of DNA: what is known without reading far.

A base's probability of order k is backed off to shorter contexts, with ``n`` the training counts
and order -1 the uniform 1/4:

    p_k(base | context) = (n(context, base) + 16 p_{k-1}(base | shorter context)) / (n(context) + 16)

Where fewer than k bases stand before a base (start of a stretch, or a break such as N), the longest
context there is is used. Codes are uint8, A C G T = 0..3, anything higher is a break. Counts are of
the forward strand, as the model trains on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BACKOFF = 16.0
"""Weight of the shorter context, in bases."""
MAX_ORDER = 12
PIECE = 1 << 18
"""Bases handled at a time: temporaries stay in the megabytes."""


class MarkovCounts:
    """Counts of every word of up to ``order + 1`` bases; additive, 4^(order+1) x 4 bytes and a third more."""

    def __init__(self, order: int) -> None:
        if not 0 <= order <= MAX_ORDER:
            raise ValueError(f"order {order} is not between 0 and {MAX_ORDER}")
        self.order = order
        # tables[k] counts words of k+1 bases; below the top only where no longer context exists,
        # because the rest follows by summing the top table
        self._tables = [np.zeros(4 ** (k + 1), _dtype(k)) for k in range(order + 1)]

    @property
    def bases(self) -> int:
        """Counted bases."""
        return sum(int(table.sum(dtype=np.int64)) for table in self._tables)

    def add(self, codes: np.ndarray) -> None:
        """Count one stretch of uint8 codes, nothing being known before its first base."""
        for piece, skip in _pieces(codes, self.order):
            known = bases_before(piece)
            target = piece < 4
            target[:skip] = False
            for k, word in enumerate(_words(piece, self.order)):
                here = target & ((known == k) if k < self.order else (known >= k))
                np.add.at(self._tables[k], word[here], self._tables[k].dtype.type(1))

    def __iadd__(self, other: MarkovCounts) -> MarkovCounts:
        for mine, theirs in zip(self._tables, other._tables, strict=True):
            mine += theirs
        return self

    def __isub__(self, other: MarkovCounts) -> MarkovCounts:
        """Take back what ``other`` counted, which must be part of this."""
        for mine, theirs in zip(self._tables, other._tables, strict=True):
            mine -= theirs
        return self

    def model(self, order: int | None = None) -> MarkovModel:
        """The model of ``order`` (at most, and by default, the order counted)."""
        order = self.order if order is None else order
        if not 0 <= order <= self.order:
            raise ValueError(f"words were counted for orders 0 to {self.order}, not {order}")
        table = self._tables[self.order]
        tables = [table]
        for k in range(self.order - 1, -1, -1):
            table = table.reshape(4, -1).sum(axis=0, dtype=_dtype(k)) + self._tables[k]
            tables.append(table)
        tables = tables[::-1][: order + 1]
        contexts = [t.reshape(-1, 4).sum(axis=1, dtype=t.dtype) for t in tables]
        return MarkovModel(order, tuple(tables), tuple(contexts))


@dataclass(frozen=True, eq=False)
class MarkovModel:
    """An interpolated model: for each order the counts of words and of contexts."""

    order: int
    words: tuple[np.ndarray, ...]
    contexts: tuple[np.ndarray, ...]

    def about(self) -> dict[str, Any]:
        """JSON values for a ledger's header."""
        return {"model": f"Markov order {self.order}", "order": self.order, "backoff": BACKOFF}

    def nats(self, codes: np.ndarray, first: bool = False) -> np.ndarray:
        """As ``score``."""
        return score(self, codes, first)

    def probabilities(self, piece: np.ndarray) -> Iterator[np.ndarray]:
        """The probability of every base of ``piece`` by order 0, 1, .. ``order``: float64, junk at breaks."""
        known = bases_before(piece)
        p = np.full(len(piece), 0.25)
        for k, word in enumerate(_words(piece, self.order)):
            longer = (self.words[k][word] + BACKOFF * p) / (self.contexts[k][word >> 2] + BACKOFF)
            p = np.where(known >= k, longer, p)
            yield p


def score(model: MarkovModel, codes: np.ndarray, first: bool = False) -> np.ndarray:
    """Negative log likelihood of each base of one window, float64 nats.

    NaN where there is no target: at breaks and, unless ``first``, at the window's first base. Nothing
    before the window is used, as the language model sees nothing there either.
    """
    nats = np.empty(len(codes))
    at = 0
    for piece, skip in _pieces(codes, model.order):
        *_, p = model.probabilities(piece)
        nats[at : at + len(piece) - skip] = -np.log(p[skip:])
        at += len(piece) - skip
    nats[codes >= 4] = np.nan
    if not first:
        nats[:1] = np.nan
    return nats


def score_orders(model: MarkovModel, codes: np.ndarray) -> tuple[np.ndarray, int]:
    """Summed nats over the bases of one stretch for order 0, 1, .. ``model.order``, and their count."""
    nats = np.zeros(model.order + 1)
    count = 0
    for piece, skip in _pieces(codes, model.order):
        target = piece < 4
        target[:skip] = False
        count += int(target.sum())
        for k, p in enumerate(model.probabilities(piece)):
            nats[k] -= np.log(p[target]).sum()
    return nats, count


def _dtype(order: int) -> type[np.integer]:
    # one short word may occur more than 2^32 times in a plant genome, a long one does not
    return np.int64 if order < 8 else np.uint32


def _pieces(codes: np.ndarray, order: int) -> Iterator[tuple[np.ndarray, int]]:
    """Pieces of ``codes`` with up to ``order`` codes of the piece before, and the number of those."""
    for start in range(0, len(codes), PIECE):
        skip = min(order, start)
        yield np.asarray(codes[start - skip : start + PIECE]), skip


def bases_before(piece: np.ndarray) -> np.ndarray:
    """How many bases stand before each place, back to the nearest break or the start of the piece."""
    place = np.arange(len(piece))
    last_break = np.maximum.accumulate(np.where(piece >= 4, place, -1))
    before = place.copy()
    before[1:] = place[:-1] - last_break[:-1]
    return before


def _words(piece: np.ndarray, order: int) -> Iterator[np.ndarray]:
    """For k = 0 .. order the word of k+1 bases ending at each place, as a number in base 4 (int32).

    Where k bases do not stand before a place, the word is junk but in range.
    """
    bases = np.where(piece < 4, piece, 0).astype(np.int32)
    word = bases
    yield word
    for k in range(1, order + 1):
        word = word.copy()
        word[k:] += bases[: max(0, len(bases) - k)] << (2 * k)
        yield word
