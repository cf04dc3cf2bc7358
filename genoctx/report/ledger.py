"""How ledgers come about: built window by window, merged part by part (``merge.py``).

The ledger holds additive sums of held-out loss and is the only source of any loss number. What its
rows are and how they are stored is in ``rows.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genoctx.errors import GenoctxError
from genoctx.report.merge import merge, merge_all, with_contigs
from genoctx.report.rows import BLOCK, SCHEMA, SUMS, Ledger, Totals, bits_per_base
from genoctx.report.strata import STRATA_SUMS, Calibration, Positions, Strata
from genoctx.report.sums import ChanceSums, PositionSums, WindowSums

__all__ = [
    "BLOCK",
    "Calibration",
    "Ledger",
    "LedgerBuilder",
    "Positions",
    "Strata",
    "Totals",
    "bits_per_base",
    "merge",
    "merge_all",
    "with_contigs",
]


class LedgerBuilder:
    """Collects per-base losses, piece by piece in any order, and refuses to count a base twice."""

    def __init__(
        self,
        header: Mapping[str, Any],
        contigs: Sequence[str],
        block: int = BLOCK,
        *,
        strata: Sequence[str] = (),
        calibrate: bool = False,
    ) -> None:
        """``header`` as in ``Ledger.header``; ``contigs`` the names that windows may lie on.

        With ``strata`` (names as in ``Strata.names``) and with ``calibrate``, ``add`` must be told
        the strata of its bases and the chances given to them.
        """
        if block < 1 or len(set(contigs)) != len(contigs):
            raise ValueError("blocks have at least one base and contigs have different names")
        self.header: dict[str, Any] = json.loads(json.dumps({**header, "schema": SCHEMA}, allow_nan=False))
        self.contigs = tuple(contigs)
        self.block = block
        self._strata = tuple(strata)
        self._windows: dict[int, WindowSums] = {}
        self._excluded: dict[str, int] = {}
        self._positions = PositionSums()
        self._chances = ChanceSums() if calibrate else None

    def window(self, index: int, contig: str, start: int, end: int, strand: str = "+") -> None:
        """Announce window ``index``: bases [start, end) of ``contig``; once (ValueError).

        On strand ``-`` it is read from its end.
        """
        if index in self._windows:
            raise ValueError(f"window {index} was announced before")
        if contig not in self.contigs or not 0 <= start < end:
            raise ValueError(f"window {index} is not a stretch of a known contig: {contig} {start} {end}")
        self._windows[int(index)] = WindowSums(
            contig, int(start), int(end), strand, self.block, len(self._strata)
        )

    def add(
        self,
        window_index: int,
        contig: str,
        positions: np.ndarray,
        nats_full: np.ndarray,
        nats_acgt: np.ndarray,
        *,
        strata: np.ndarray | None = None,
        chances: np.ndarray | None = None,
        truth: np.ndarray | None = None,
    ) -> None:
        """Add scored bases of an announced window.

        ``positions`` int64, 0-based on the contig, in any order; ``nats_full`` and ``nats_acgt``
        floats of the same length, negative log likelihood in nats. ``strata`` integers [facets, bases]
        into the builder's names; ``chances`` floats [bases, 4], the probabilities of the four letters,
        and ``truth`` integers, which of them it is.
        Raises ValueError for a base outside the window or counted before, GenoctxError for a loss that
        is not a number.
        """
        window = self._windows.get(int(window_index))
        if window is None or window.contig != contig:
            raise ValueError(f"window {window_index} on {contig} was not announced")
        positions = np.asarray(positions, dtype=np.int64)
        losses = np.stack([np.asarray(nats_full, np.float64), np.asarray(nats_acgt, np.float64)])
        if positions.ndim != 1 or losses.shape != (2, len(positions)):
            raise ValueError(f"{positions.shape} positions for losses of shape {losses.shape[1:]}")
        if (strata is None) == bool(self._strata) or (chances is None) == (self._chances is not None):
            raise ValueError("a builder is told strata and chances of all bases or of none")
        _refuse_nonsense(contig, positions, losses)
        if not len(positions):
            return
        none = np.zeros((0, len(positions)), dtype=np.int64)
        window.add(positions, losses, none if strata is None else strata)
        self._positions.add(window, positions, losses[1])
        if self._chances is not None and chances is not None and truth is not None:
            self._chances.add(chances, truth)

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
        of_window, starts, counts, sums = _joined([window.rows() for window in opened])
        return Ledger(
            header=dict(self.header),
            contigs=self.contigs,
            block=self.block,
            windows=windows,
            contig=windows[of_window, 1],
            window=windows[of_window, 0],
            block_start=starts,
            count=counts,
            **{name: column.copy() for name, column in zip(SUMS, sums, strict=True)},
            excluded=dict(sorted(self._excluded.items())),
            strata=self._build_strata(windows[:, 0], opened) if self._strata else None,
            positions=self._positions.build(max((w.end - w.start for w in opened), default=0)),
            calibration=self._chances.build() if self._chances else None,
        )

    def _build_strata(self, indices: np.ndarray, opened: list[WindowSums]) -> Strata:
        of_window, starts, strata, sums = _joined([window.strata_rows() for window in opened])
        columns = {name: column.copy() for name, column in zip(STRATA_SUMS, sums[1:], strict=True)}
        return Strata(
            self._strata, indices[of_window], starts, strata, count=sums[0].astype(np.int64), **columns
        )


def _joined(
    windows: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of all windows: the place of each row's window, two int64 columns and three sums."""
    of_window = np.repeat(np.arange(len(windows)), [len(first) for first, _, _ in windows])
    none = np.zeros(0, dtype=np.int64)
    firsts = np.concatenate([none, *(first for first, _, _ in windows)])
    seconds = np.concatenate([none, *(second for _, second, _ in windows)])
    return (
        of_window,
        firsts,
        seconds,
        np.concatenate([np.zeros((3, 0)), *(sums for _, _, sums in windows)], axis=1),
    )


def _refuse_nonsense(contig: str, positions: np.ndarray, losses: np.ndarray) -> None:
    bad = ~np.isfinite(losses).all(axis=0)
    if bad.any():
        first = int(bad.argmax())
        raise GenoctxError(
            f"the loss of {contig}:{positions[first] + 1} is {losses[:, first].max()}",
            "the model diverged or its weights are broken; no window is left out of an average",
        )
