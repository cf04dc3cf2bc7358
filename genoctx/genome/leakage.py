"""How much of the held-out windows stands in the training windows too, as exact k-mers on either strand.

k-mers are told apart by a hash. Those below 2^64 / N are a sample of one in N *different* k-mers, each
with all its occurrences, in held-out and training windows alike: a share over them is an estimate of the
share over all. Held-out k-mers become a sorted array; training windows stream past it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from genoctx.genome.bed import merge
from genoctx.genome.kmer_set import KmerReader, KmerSet, collect, found_in
from genoctx.genome.kmers import Region, check_k
from genoctx.genome.splits import HOLDOUT, TRAIN
from genoctx.genome.store import GenomeStore
from genoctx.genome.window_table import Window, WindowTable, rows_digest

K = 31
SAMPLE = 64
"""One k-mer in so many is looked at, in a large held-out split."""
ENOUGH = 100_000
"""k-mers to look at, at least."""
SMALL = 4_000_000
"""Held-out bases up to which all k-mers are looked at."""
PER_PASS = 1 << 24
"""Held-out k-mers of one pass over the genome: at most about 400 MB."""

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Leakage:
    """k-mers of the held-out windows, and how many of them stand in the training windows too.

    Touching windows are read as one stretch, overlapping ones once. k-mers with a letter other than
    A, C, G and T are not counted.
    """

    k: int
    one_in: int
    """One different k-mer in so many was looked at; 1 is all of them."""
    kmers: int
    """Occurrences looked at."""
    found: int
    """Of these, occurrences of a k-mer that is in the training windows."""
    distinct: int
    """Different k-mers looked at."""
    distinct_found: int
    error: float
    """Standard error of ``share`` from looking at a sample; 0.0 when all were looked at."""
    fractions: tuple[float | None, ...]
    """Per window given: the share of the k-mers that begin in it. None where none was looked at, and for
    windows that are not held out."""

    @property
    def share(self) -> float | None:
        """Share of occurrences; None if there was no k-mer to look at."""
        return self.found / self.kmers if self.kmers else None

    @property
    def distinct_share(self) -> float | None:
        """Share of different k-mers; None if there was none."""
        return self.distinct_found / self.distinct if self.distinct else None


def audit(
    store: GenomeStore,
    windows: Sequence[Window],
    *,
    k: int = K,
    exact: bool = False,
    progress: Progress | None = None,
) -> Leakage:
    """Look for the k-mers of ``holdout`` windows in ``train`` windows. Same numbers on every machine.

    ``exact`` looks at all of them, in as many passes over the genome as keep memory flat. Otherwise
    ``sample_rate`` says how many. ``progress`` is called with numbers of bases out of ``work(...)``.
    Raises UsageError for a k that is not supported.
    """
    check_k(k)
    held, train = regions(windows, HOLDOUT), regions(windows, TRAIN)
    one_in = 1 if exact else sample_rate(_bases(held))
    reader = KmerReader(store, k, progress or (lambda bases: None))
    tally = _Tally(store, windows)
    for first, last in _hash_ranges(one_in, passes(_bases(held), one_in)):
        leaked = _leaked(reader, held, train, tally, first, last)
        for piece, hashes, at in reader.hashes(held, first, last):
            tally.add_places(piece.places(at), leaked.holds(hashes))
    return tally.result(k, one_in)


def _leaked(
    reader: KmerReader, held: list[Region], train: list[Region], tally: _Tally, first: int, last: int
) -> KmerSet:
    """The held-out k-mers of a range of hashes that are in training windows; counts them in ``tally``."""
    kmers = collect(reader, held, first, last)
    hit = found_in(reader, train, kmers, first, last)
    tally.add_distinct(kmers.counts, hit)
    return KmerSet(kmers.keys[hit])


def sample_rate(bases: int) -> int:
    """N of a sample of one k-mer in N, for so many held-out bases: 1 up to ``SMALL``."""
    if bases <= SMALL:
        return 1
    rate = SAMPLE
    while rate > 1 and bases < rate * ENOUGH:
        rate //= 2
    return rate


def passes(bases: int, one_in: int) -> int:
    """How often the windows are read for so many held-out bases."""
    return max(1, -(-bases // (one_in * PER_PASS)))


def work(windows: Sequence[Window], exact: bool) -> int:
    """Bases that ``audit`` reads in all: the total of its progress."""
    held = _bases(regions(windows, HOLDOUT))
    once = 2 * held + _bases(regions(windows, TRAIN))
    return once * passes(held, 1 if exact else sample_rate(held))


def with_leakage(table: WindowTable, leakage: Leakage, limit: float) -> WindowTable:
    """``table`` with what was found: ``leak_fraction`` per window, and the whole in the header."""
    share, distinct = leakage.share, leakage.distinct_share
    found: dict[str, str | int | float] = {
        "leak_k": leakage.k,
        "leak_sampled": f"1/{leakage.one_in}",
        "leak_kmers": leakage.kmers,
        "leak_limit": limit,
        "leak_rows": rows_digest(table.windows),
    }
    if share is not None and distinct is not None:
        found |= {
            "leak_share": round(share, 6),
            "leak_error": round(leakage.error, 6),
            "leak_distinct": round(distinct, 6),
        }
    rows = zip(table.windows, leakage.fractions, strict=True)
    windows = [w if f is None else replace(w, leak_fraction=round(f, 6)) for w, f in rows]
    return WindowTable(tuple(windows), {**table.header, **found}, table.path)


def regions(windows: Sequence[Window], split: str) -> list[Region]:
    """The bases that windows of ``split`` cover, sorted and each once."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for window in windows:
        if window.split == split:
            spans.setdefault(window.contig, []).append((window.start, window.end))
    return [(contig, start, end) for contig in sorted(spans) for start, end in merge(spans[contig])]


def _bases(where: Sequence[Region]) -> int:
    return sum(end - start for _, start, end in where)


def _hash_ranges(one_in: int, parts: int) -> Iterator[tuple[int, int]]:
    """The hashes below 2^64 / ``one_in`` in ``parts`` ranges: first and last hash of each."""
    end = (1 << 64) // one_in
    for part in range(parts):
        yield end * part // parts, end * (part + 1) // parts - 1


class _Tally:
    """Counts of occurrences per window, and what their total is worth."""

    def __init__(self, store: GenomeStore, windows: Sequence[Window]) -> None:
        held = [w for w in windows if w.split == HOLDOUT]
        offset = {name: store.contig(name).offset for name in {w.contig for w in held}}
        self._is_held = np.array([w.split == HOLDOUT for w in windows], dtype=bool)
        self._starts = np.array([offset[w.contig] + w.start for w in held], dtype=np.int64)
        self._ends = np.array([offset[w.contig] + w.end for w in held], dtype=np.int64)
        # windows may overlap: counted is between neighbouring borders, of whichever window
        self._borders = np.unique(np.concatenate([self._starts, self._ends]))
        self._all = np.zeros(self._borders.size + 1, dtype=np.int64)
        self._leaked = self._all.copy()
        self._distinct = self._distinct_found = 0
        self._squares = [0, 0]  # of the numbers of occurrences, of k-mers not found and found

    def add_distinct(self, counts: np.ndarray, hit: np.ndarray) -> None:
        self._distinct += counts.size
        self._distinct_found += int(np.count_nonzero(hit))
        for found in (False, True):
            self._squares[found] += int(np.square(counts[hit == found], dtype=np.int64).sum())

    def add_places(self, places: np.ndarray, leaked: np.ndarray) -> None:
        """``places`` in the store of k-mers looked at; ``leaked``: indices of those that were found."""
        stretch = np.searchsorted(self._borders, places, side="right")
        np.add.at(self._all, stretch, 1)
        np.add.at(self._leaked, stretch[leaked], 1)

    def result(self, k: int, one_in: int) -> Leakage:
        kmers, found = int(self._all.sum()), int(self._leaked.sum())
        # per held-out window: sums over the stretches that begin in it
        upto_all, upto_leaked = np.cumsum(self._all), np.cumsum(self._leaked)
        first, last = (np.searchsorted(self._borders, edge) for edge in (self._starts, self._ends))
        own, own_leaked = upto_all[last] - upto_all[first], upto_leaked[last] - upto_leaked[first]
        fractions: list[float | None] = [None] * self._is_held.size
        for at, n, leaked in zip(np.flatnonzero(self._is_held), own, own_leaked, strict=True):
            fractions[at] = int(leaked) / int(n) if n else None
        return Leakage(
            k=k,
            one_in=one_in,
            kmers=kmers,
            found=found,
            distinct=self._distinct,
            distinct_found=self._distinct_found,
            error=self._error(kmers, found, one_in),
            fractions=tuple(fractions),
        )

    def _error(self, kmers: int, found: int, one_in: int) -> float:
        """Of a ratio estimate whose units are different k-mers, each with all its occurrences."""
        if not kmers:
            return 0.0
        share = found / kmers
        residual = (1 - share) ** 2 * self._squares[True] + share**2 * self._squares[False]
        return math.sqrt((1 - 1 / one_in) * residual) / kmers
