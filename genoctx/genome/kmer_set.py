"""Sets of k-mers of a store, known by their hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from genoctx.genome.kmers import Piece, Region, canonical_kmers, mix, read_pieces
from genoctx.genome.store import GenomeStore

BATCH = 1 << 20


@dataclass(frozen=True)
class KmerReader:
    """Streams hashes of k-mers out of a store, those of one range of hashes at a time."""

    store: GenomeStore
    k: int
    progress: Callable[[int], object]
    """Called with the number of bases just read."""

    def hashes(
        self, where: Sequence[Region], first: int, last: int
    ) -> Iterator[tuple[Piece, np.ndarray, np.ndarray]]:
        """Per piece of ``where``: hashes from ``first`` to ``last`` (uint64), and where they begin in it."""
        low, width = np.uint64(first), np.uint64(last - first)
        for piece in read_pieces(self.store, where, self.k):
            numbers, counts = canonical_kmers(piece.codes, self.k)
            hashes = mix(numbers)
            # unsigned: what lies below ``low`` wraps around to above ``width``
            counts &= hashes - low <= width
            at = np.flatnonzero(counts)
            yield piece, hashes[at], at
            self.progress(piece.bases)


class KmerSet:
    """A sorted set of hashes, behind a table that turns most others away at one look."""

    def __init__(self, keys: np.ndarray, counts: np.ndarray | None = None) -> None:
        """``keys``: uint64, ascending, all different. ``counts``: how often each occurs."""
        self.keys = keys
        self.counts = counts if counts is not None else np.ones(keys.size, dtype=np.int32)
        slots = 1 << max(10, (4 * keys.size - 1).bit_length())
        self._mask = np.uint64(slots - 1)
        self._taken = np.zeros(slots, dtype=bool)
        self._taken[self._slots(keys)] = True

    def _slots(self, hashes: np.ndarray) -> np.ndarray:
        return (hashes & self._mask).view(np.int64)

    def likely(self, hashes: np.ndarray) -> np.ndarray:
        """Indices of all ``hashes`` that are in the set, and of a quarter of the others at most."""
        return np.flatnonzero(self._taken[self._slots(hashes)])

    def rank(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where in ``keys`` each of ``hashes`` is, int64, and whether it is there at all, bool.

        Fast for sorted ``hashes``: the searches of neighbours go through the same memory.
        """
        if not self.keys.size:
            return np.zeros(hashes.size, dtype=np.int64), np.zeros(hashes.size, dtype=bool)
        where = np.minimum(np.searchsorted(self.keys, hashes), self.keys.size - 1)
        return where, self.keys[where] == hashes

    def holds(self, hashes: np.ndarray) -> np.ndarray:
        """Indices of those of ``hashes`` that are in the set: int64, in no order."""
        likely = self.likely(hashes)
        likely = likely[np.argsort(hashes[likely])]
        return likely[self.rank(hashes[likely])[1]]


def collect(reader: KmerReader, where: Sequence[Region], first: int, last: int) -> KmerSet:
    """The different k-mers of ``where`` with their numbers of occurrences."""
    found = [hashes for _, hashes, _ in reader.hashes(where, first, last)]
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *found])
    del found  # here and below: with 2^24 k-mers each array is 128 MiB
    hashes.sort()
    begins = np.concatenate([[True], hashes[1:] != hashes[:-1]])[: hashes.size]
    keys, total = hashes[begins], hashes.size
    del hashes
    at = np.flatnonzero(begins)
    counts = np.diff(at, append=total).astype(np.int32)
    del at, begins
    return KmerSet(keys, counts)


def found_in(
    reader: KmerReader, where: Sequence[Region], kmers: KmerSet, first: int, last: int
) -> np.ndarray:
    """Which of ``kmers`` stand in ``where``: bool."""
    hit = np.zeros(kmers.keys.size, dtype=bool)
    likely = (hashes[kmers.likely(hashes)] for _, hashes, _ in reader.hashes(where, first, last))
    for batch in _batches(likely):
        batch.sort()
        ranks, real = kmers.rank(batch)
        hit[ranks[real]] = True
    return hit


def _batches(parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """``parts`` joined to arrays of about ``BATCH`` entries: many questions are answered faster at once."""
    waiting: list[np.ndarray] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += part.size
        if size >= BATCH:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)
