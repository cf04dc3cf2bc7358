"""What a ledger holds beside its rows: sums by stratum, by position in the window, by probability.

All are additive, and a part of the sum stands only where every ledger added has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

PROBABILITY_BINS = 20
LETTERS = 4

STRATA_KEYS = ("window", "block_start", "stratum")
STRATA_SUMS = ("nats_full_sum", "nats_acgt_sum")
STRATA_DTYPES = {**dict.fromkeys((*STRATA_KEYS, "count"), "i8"), **dict.fromkeys(STRATA_SUMS, "f8")}
POSITION_DTYPES = {"count": "i8", "nats_acgt_sum": "f8"}
CALIBRATION_DTYPES = {"count": "i8", "p_sum": "f8", "hits": "i8"}


@dataclass(frozen=True, eq=False)
class Strata:
    """Rows of the ledger, each divided by what its bases are; once for every facet.

    A facet is the part of a name before ``/``. The strata of one facet hold every scored base once.
    """

    names: tuple[str, ...]
    """``region/CDS1``, ``mask/soft-masked``, ``gc/3``, ..."""
    window: np.ndarray
    """int64 [rows], sorted by window, block and stratum: the window's index in the window table."""
    block_start: np.ndarray
    """int64 [rows]: first base of the block."""
    stratum: np.ndarray
    """int64 [rows]: index into ``names``."""
    count: np.ndarray
    """int64 [rows]: scored bases."""
    nats_full_sum: np.ndarray
    """float64 [rows]"""
    nats_acgt_sum: np.ndarray
    """float64 [rows]"""

    @property
    def facets(self) -> tuple[str, ...]:
        """In the order of their first names."""
        return tuple(dict.fromkeys(map(facet_of, self.names)))

    def rows_of(self, facet: str) -> np.ndarray:
        """bool [rows]: which rows belong to ``facet``."""
        return np.array([facet_of(name) == facet for name in self.names], dtype=bool)[self.stratum]

    def problem(self, window: np.ndarray, block_start: np.ndarray, count: np.ndarray) -> str:
        """What is wrong in words, or nothing; the arguments are the ledger's rows, sorted."""
        if not self.names or len(set(self.names)) != len(self.names) or not all("/" in n for n in self.names):
            return "strata without names of their own"
        if any(getattr(self, name).shape != self.count.shape for name in STRATA_DTYPES):
            return "columns of strata of different lengths"
        if not np.isin(self.stratum, np.arange(len(self.names))).all():
            return "rows of strata that have no name"
        if not strictly_ascending(self.window, self.block_start, self.stratum):
            return "rows of strata that are not sorted"
        if (self.count < 1).any() or not all(np.isfinite(getattr(self, name)).all() for name in STRATA_SUMS):
            return "strata without bases, or with a loss that is not a number"
        row = find_rows((window, block_start), (self.window, self.block_start))
        if (row < 0).any():
            return "strata of blocks that are not in the ledger"
        for facet in self.facets:
            mine = self.rows_of(facet)
            if not np.array_equal(np.bincount(row[mine], self.count[mine], minlength=len(count)), count):
                return f"the strata of {facet} do not hold every scored base once"
        return ""


@dataclass(frozen=True, eq=False)
class Positions:
    """All windows together by how far into the window a base is read: bin b holds the positions p (from 0)
    with floor(log2(p + 1)) = b."""

    count: np.ndarray
    """int64 [bins]"""
    nats_acgt_sum: np.ndarray
    """float64 [bins]"""

    def problem(self, count: int) -> str:
        """What is wrong in words, or nothing; ``count`` is that of the ledger."""
        if self.count.ndim != 1 or self.count.shape != self.nats_acgt_sum.shape:
            return "columns of positions of different lengths"
        if (self.count < 0).any() or self.count.sum() != count:
            return "the positions do not hold every scored base once"
        return "" if np.isfinite(self.nats_acgt_sum).all() else "a loss by position that is not a number"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The probabilities given to A, C, G and T at every scored base, in equal bins, and how often they came
    true: four entries a base."""

    count: np.ndarray
    """int64 [20]: probabilities in this bin."""
    p_sum: np.ndarray
    """float64 [20]: their sum."""
    hits: np.ndarray
    """int64 [20]: how many of them were given to the true base."""

    def problem(self, count: int) -> str:
        """What is wrong in words, or nothing; ``count`` is that of the ledger."""
        if any(getattr(self, name).shape != (PROBABILITY_BINS,) for name in CALIBRATION_DTYPES):
            return f"calibration that has not {PROBABILITY_BINS} bins"
        if self.count.sum() != LETTERS * count or self.hits.sum() != count:
            return "the calibration does not hold every scored base once"
        if (self.hits < 0).any() or (self.hits > self.count).any():
            return "probabilities that came true more often than they were given"
        return "" if np.isfinite(self.p_sum).all() else "a probability that is not a number"


def facet_of(name: str) -> str:
    """``region`` of ``region/CDS1``."""
    return name.partition("/")[0]


def strictly_ascending(*columns: np.ndarray) -> bool:
    """Whether rows of equally long integer ``columns``, the first the most significant, only grow."""
    equal = np.ones(max(0, len(columns[0]) - 1), dtype=bool)
    for column in columns:
        step = np.diff(column)
        if (equal & (step < 0)).any():
            return False
        equal &= step == 0
    return not equal.any()


def find_rows(rows: Iterable[np.ndarray], wanted: Iterable[np.ndarray]) -> np.ndarray:
    """Where each wanted row stands among ``rows`` (sorted columns, without doubles): int64, -1 for nowhere."""
    (a, b), (c, d) = rows, wanted
    if not len(a):
        return np.full(len(c), -1, dtype=np.int64)
    # two integers as one: the rank of the first among its values, and the second from 0
    firsts, base = np.unique(a), min(int(b.min()), int(d.min(initial=0)))
    width = max(int(b.max()), int(d.max(initial=0))) - base + 1
    keys = np.searchsorted(firsts, a) * width + (b - base)
    rank = np.minimum(np.searchsorted(firsts, c), len(firsts) - 1)
    found = np.minimum(np.searchsorted(keys, rank * width + (d - base)), len(keys) - 1)
    return np.where((a[found] == c) & (b[found] == d), found, -1)


# sums of two ledgers


def add_strata(a: Strata | None, b: Strata | None) -> Strata | None:
    """The facets that both have, added up; None if there are none."""
    if a is None or b is None:
        return None
    facets = set(a.facets) & set(b.facets)
    if not facets:
        return None
    every = a.names if a.names == b.names else tuple(sorted({*a.names, *b.names}))
    names = tuple(name for name in every if facet_of(name) in facets)
    number = {name: i for i, name in enumerate(names)}
    kept = []
    for part in (a, b):
        to = np.array([number.get(name, -1) for name in part.names], dtype=np.int64)[part.stratum]
        columns = {name: getattr(part, name) for name in STRATA_DTYPES} | {"stratum": to}
        kept.append({name: column[to >= 0] for name, column in columns.items()})
    keys, sums = add_rows(kept, STRATA_KEYS, ("count", *STRATA_SUMS))
    return Strata(names, **keys, **sums)


def add_positions(a: Positions | None, b: Positions | None) -> Positions | None:
    """None where one is; the shorter one has nothing in its last bins."""
    if a is None or b is None:
        return None
    bins = max(len(a.count), len(b.count))
    both = (
        {name: np.pad(getattr(p, name), (0, bins - len(p.count))) for name in POSITION_DTYPES} for p in (a, b)
    )
    first, second = both
    return Positions(**{name: first[name] + second[name] for name in POSITION_DTYPES})


def add_calibration(a: Calibration | None, b: Calibration | None) -> Calibration | None:
    """None where one is."""
    if a is None or b is None:
        return None
    return Calibration(**{name: getattr(a, name) + getattr(b, name) for name in CALIBRATION_DTYPES})


def add_rows(
    parts: Iterable[dict[str, np.ndarray]], keys: tuple[str, ...], sums: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rows of equal ``keys`` (int64 columns) as one: sorted keys, and their ``sums``."""
    together = list(parts)
    table = np.concatenate([np.stack([part[key] for key in keys], axis=1) for part in together])
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    added = {}
    for name in sums:
        values = np.concatenate([part[name] for part in together])
        added[name] = np.zeros(len(rows), values.dtype)
        np.add.at(added[name], row_of.reshape(-1), values)
    return {key: rows[:, i].copy() for i, key in enumerate(keys)}, added
