"""How ledgers come about: built window by window, merged part by part.

The ledger holds additive sums of held-out loss and is the only source of any loss number. What its
rows are and how they are stored is in ``rows.py``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from genoctx.errors import GenoctxError, InputError
from genoctx.report.rows import BLOCK, IDENTITY, SCHEMA, SUMS, Ledger, Totals, bits_per_base

__all__ = [
    "BLOCK",
    "Ledger",
    "LedgerBuilder",
    "Totals",
    "bits_per_base",
    "merge",
    "merge_all",
    "with_contigs",
]

_PARTS = "merge only parts of one evaluation, such as the ledgers of its ranks"


class LedgerBuilder:
    """Collects per-base losses, piece by piece in any order, and refuses to count a base twice."""

    def __init__(self, header: Mapping[str, Any], contigs: Sequence[str], block: int = BLOCK) -> None:
        """``header`` as in ``Ledger.header``; ``contigs`` the names that windows may lie on."""
        if block < 1 or len(set(contigs)) != len(contigs):
            raise ValueError("blocks have at least one base and contigs have different names")
        self.header: dict[str, Any] = json.loads(json.dumps({**header, "schema": SCHEMA}, allow_nan=False))
        self.contigs = tuple(contigs)
        self.block = block
        self._windows: dict[int, _OpenWindow] = {}
        self._excluded: dict[str, int] = {}

    def window(self, index: int, contig: str, start: int, end: int) -> None:
        """Announce window ``index``: bases [start, end) of ``contig``; once (ValueError)."""
        if index in self._windows:
            raise ValueError(f"window {index} was announced before")
        if contig not in self.contigs or not 0 <= start < end:
            raise ValueError(f"window {index} is not a stretch of a known contig: {contig} {start} {end}")
        self._windows[int(index)] = _OpenWindow(contig, int(start), int(end), self.block)

    def add(
        self,
        window_index: int,
        contig: str,
        positions: np.ndarray,
        nats_full: np.ndarray,
        nats_acgt: np.ndarray,
    ) -> None:
        """Add scored bases of an announced window.

        ``positions`` int64, 0-based on the contig, in any order; ``nats_full`` and ``nats_acgt``
        floats of the same length, negative log likelihood in nats. Raises ValueError for a base
        outside the window or counted before, GenoctxError for a loss that is not a number.
        """
        window = self._windows.get(int(window_index))
        if window is None or window.contig != contig:
            raise ValueError(f"window {window_index} on {contig} was not announced")
        positions = np.asarray(positions, dtype=np.int64)
        losses = np.stack([np.asarray(nats_full, np.float64), np.asarray(nats_acgt, np.float64)])
        if positions.ndim != 1 or losses.shape != (2, len(positions)):
            raise ValueError(f"{positions.shape} positions for losses of shape {losses.shape[1:]}")
        bad = ~np.isfinite(losses).all(axis=0)
        if bad.any():
            first = int(bad.argmax())
            raise GenoctxError(
                f"the loss of {contig}:{positions[first] + 1} is {losses[:, first].max()}",
                "the model diverged or its weights are broken; no window is left out of an average",
            )
        if len(positions):
            window.add(positions, losses)

    def exclude(self, reason: str, n: int) -> None:
        """Note ``n`` more bases that lie in the windows and are no targets, for this ``reason``."""
        if n < 0:
            raise ValueError(f"{n} excluded bases")
        if n:
            self._excluded[reason] = self._excluded.get(reason, 0) + int(n)

    def build(self) -> Ledger:
        """The ledger of everything added so far; blocks without a scored base have no row."""
        order = sorted(self._windows)
        opened = [self._windows[index] for index in order]
        table = [
            (i, self.contigs.index(w.contig), w.start, w.end) for i, w in zip(order, opened, strict=True)
        ]
        windows = np.array(table, dtype=np.int64).reshape(-1, 4)
        rows = [window.rows() for window in opened]
        of_window = np.repeat(np.arange(len(rows)), [len(starts) for starts, _, _ in rows])
        sums = np.concatenate([np.zeros((3, 0)), *(part for _, _, part in rows)], axis=1)
        none = np.zeros(0, dtype=np.int64)
        return Ledger(
            header=dict(self.header),
            contigs=self.contigs,
            block=self.block,
            windows=windows,
            contig=windows[of_window, 1],
            window=windows[of_window, 0],
            block_start=np.concatenate([none, *(starts for starts, _, _ in rows)]),
            count=np.concatenate([none, *(counts for _, counts, _ in rows)]),
            **{name: column.copy() for name, column in zip(SUMS, sums, strict=True)},
            excluded=dict(sorted(self._excluded.items())),
        )


class _OpenWindow:
    """The sums of one window by block, and one bit per base that is already counted."""

    def __init__(self, contig: str, start: int, end: int, block: int) -> None:
        self.contig, self.start, self.end, self.block = contig, start, end, block
        self.first = start // block
        blocks = (end - 1) // block - self.first + 1
        self.count = np.zeros(blocks, dtype=np.int64)
        self.sums = np.zeros((3, blocks))
        self._counted = np.zeros((end - start + 7) // 8, dtype=np.uint8)

    def add(self, positions: np.ndarray, losses: np.ndarray) -> None:
        low, high = int(positions.min()), int(positions.max())
        if low < self.start or high >= self.end:
            raise ValueError(f"{self.contig} {low}..{high} is not inside the window {self.start}..{self.end}")
        self._count_once(positions - self.start)
        # sums run over the piece's own blocks alone: a piece may be one base of a long window
        base = low // self.block
        slot = positions // self.block - base
        here = slice(base - self.first, high // self.block - self.first + 1)
        blocks = here.stop - here.start
        self.count[here] += np.bincount(slot, minlength=blocks)
        for row, weights in enumerate((losses[0], losses[1], losses[0] ** 2)):
            self.sums[row, here] += np.bincount(slot, weights, minlength=blocks)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts, counts and sums [3, blocks] of the blocks with scored bases."""
        blocks = np.flatnonzero(self.count)
        return (self.first + blocks) * self.block, self.count[blocks], self.sums[:, blocks]

    def _count_once(self, offsets: np.ndarray) -> None:
        octet = int(offsets.min()) // 8
        bits = np.unpackbits(self._counted[octet : int(offsets.max()) // 8 + 1])
        times = np.bincount(offsets - 8 * octet, minlength=len(bits)) + bits
        if times.max() > 1:
            twice = self.start + 8 * octet + int(times.argmax())
            raise ValueError(f"base {twice} of {self.contig} was counted before")
        self._counted[octet : octet + len(bits) // 8] = np.packbits(times.astype(np.uint8))


def merge(a: Ledger, b: Ledger) -> Ledger:
    """The sum of two parts of one evaluation; associative and commutative.

    Raises InputError where they are not parts of one evaluation, or count a base twice.
    """
    if a.block != b.block:
        raise InputError(f"ledgers with blocks of {a.block} and {b.block} bases do not add up", _PARTS)
    header = _merge_headers(a.header, b.header)
    contigs = a.contigs if a.contigs == b.contigs else tuple(sorted({*a.contigs, *b.contigs}))
    a, b = with_contigs(a, contigs), with_contigs(b, contigs)
    windows = np.unique(np.concatenate([a.windows, b.windows]), axis=0)
    if (np.diff(windows[:, 0]) == 0).any():
        raise InputError(
            "one window index stands for two different windows", "merge ledgers of one window table"
        )
    key = np.concatenate([np.stack([p.window, p.block_start, p.contig], axis=1) for p in (a, b)])
    rows, row_of = np.unique(key, axis=0, return_inverse=True)
    columns = {}
    for name in ("count", *SUMS):
        values = np.concatenate([getattr(a, name), getattr(b, name)])
        columns[name] = np.zeros(len(rows), values.dtype)
        np.add.at(columns[name], row_of.reshape(-1), values)
    excluded = {
        reason: a.excluded.get(reason, 0) + b.excluded.get(reason, 0)
        for reason in sorted({*a.excluded, *b.excluded})
    }
    merged = Ledger(
        header,
        contigs,
        a.block,
        windows,
        contig=rows[:, 2].copy(),
        window=rows[:, 0].copy(),
        block_start=rows[:, 1].copy(),
        **columns,
        excluded=excluded,
    )
    if wrong := merged.problem():
        raise InputError(f"the ledgers do not add up: {wrong}", "was one part given twice?")
    return merged


def merge_all(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of one or more parts of one evaluation."""
    parts = iter(ledgers)
    total = next(parts)
    for part in parts:
        total = merge(total, part)
    return total


def _merge_headers(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    merged = {}
    for key in sorted({*a, *b}):
        values = [header[key] for header in (a, b) if key in header]
        if key in IDENTITY and values[0] != values[-1]:
            raise InputError(f"ledgers of two evaluations: {key} is {values[0]} and {values[-1]}", _PARTS)
        # any rule would do that does not depend on the order
        merged[key] = min(values, key=lambda value: json.dumps(value, sort_keys=True))
    return merged


def with_contigs(ledger: Ledger, contigs: tuple[str, ...]) -> Ledger:
    """``ledger`` with its contigs numbered as in ``contigs``, which holds at least its own."""
    place = {name: i for i, name in enumerate(contigs)}
    number = np.array([place[name] for name in ledger.contigs], dtype=np.int64)
    windows = ledger.windows.copy()
    windows[:, 1] = number[windows[:, 1]]
    return dataclasses.replace(ledger, contigs=contigs, windows=windows, contig=number[ledger.contig])
