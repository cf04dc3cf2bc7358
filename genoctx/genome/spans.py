"""Many intervals at once: 0-based, half-open, as a pair of int64 arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Spans(NamedTuple):
    """Intervals in any order; both arrays int64 of one length."""

    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:  # the number of intervals, not of arrays
        return len(self.starts)


class Groups(NamedTuple):
    """Rows sorted by group, and by start within each."""

    order: np.ndarray
    """int64: the rows' numbers."""
    first: np.ndarray
    """int64: where in ``order`` each group begins."""


def union(parts: Iterable[Spans]) -> Spans:
    """Sorted intervals that cover the same positions; none is empty, overlaps or touches another."""
    listed = list(parts)
    if not listed:
        nothing = np.zeros(0, dtype=np.int64)
        return Spans(nothing, nothing)
    starts, ends = (np.concatenate(arrays) for arrays in zip(*listed, strict=True))
    order = np.argsort(starts, kind="stable")
    order = order[starts[order] < ends[order]]
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    begins = np.ones(len(starts), dtype=bool)
    begins[1:] = starts[1:] > reach[:-1]
    last = np.flatnonzero(np.append(begins[1:], True)) if len(starts) else np.zeros(0, dtype=np.int64)
    return Spans(starts[begins], reach[last])


def group(starts: np.ndarray, keys: tuple[np.ndarray, ...], rows: np.ndarray) -> Groups:
    """The ``rows`` (int64 row numbers) in groups that are equal in all ``keys``."""
    order = rows[np.lexsort((starts[rows], *(key[rows] for key in keys)))]
    begins = np.zeros(len(order), dtype=bool)
    begins[:1] = True
    for key in keys:
        begins[1:] |= key[order[1:]] != key[order[:-1]]
    return Groups(order, np.flatnonzero(begins))


def hulls(spans: Spans, groups: Groups) -> Spans:
    """From the first to the last position of each group."""
    if not len(groups.first):
        return Spans(groups.first, groups.first)
    reach = np.maximum.reduceat(spans.ends[groups.order], groups.first)
    return Spans(spans.starts[groups.order[groups.first]], reach)


def gaps(spans: Spans, groups: Groups) -> tuple[Spans, np.ndarray]:
    """What lies between the intervals of a group and in none; with the row after each gap (int64)."""
    order = groups.order
    starts, ends = spans.starts[order], spans.ends[order]
    if not len(order):
        return Spans(starts, ends), order
    # one running maximum serves all groups when each lies above the one before
    width = int(ends.max() - starts.min()) + 1
    number = np.zeros(len(order), dtype=np.int64)
    number[groups.first[1:]] = 1
    lift = np.cumsum(number) * width
    reach = np.maximum.accumulate(ends + lift) - lift
    is_gap = np.zeros(len(order), dtype=bool)
    is_gap[1:] = starts[1:] > reach[:-1]
    is_gap[groups.first] = False
    after = np.flatnonzero(is_gap)
    return Spans(reach[after - 1], starts[after]), order[after]
