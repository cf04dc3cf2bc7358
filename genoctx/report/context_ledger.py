"""The loss of the same bases at several contexts: the second half of every window, read with more and more
bases before it.

At context c a window is read in pieces of c bases, one every c / 2, and of each piece the second half
counts: every base there has c / 2 to c - 1 bases before it. At the longest context, the window's own, it is
the second half of the window, so that all contexts are compared on that half. Bases are told apart by
whether a model could have copied them: *seen* means that the 24 bases that end there stand earlier in the
window, on either strand.

Beside the model's loss may stand that of the adaptive baseline (``adaptive.py``) on the same bases, begun anew
in every piece: what the bases have to offer at that context to a reader who only counts and copies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genoctx.errors import GenoctxError, InputError
from genoctx.report.npz import read_npz, write_npz
from genoctx.report.rows import BLOCK, problem_of_windows
from genoctx.report.strata import strictly_ascending

SCHEMA = 1
KIND = "genoctx-contexts"
FILE = "contexts.npz"

_KEYS = ("context", "window", "block_start", "seen")
_DTYPES = {
    **dict.fromkeys(("windows", "context", "window", "contig", "block_start", "seen", "count"), "i8"),
    "nats_acgt_sum": "f8",
}
_OPTIONAL = {"adaptive_nats_sum": "f8"}


def piece_starts(length: int, context: int) -> range:
    """Where, in reading direction, pieces begin whose second halves make up that of ``length`` bases."""
    return range((length - context) // 2, length - context + 1, context // 2)


@dataclass(frozen=True, eq=False)
class ContextLedger:
    """Rows sorted by context, window, block and seen. Build one with ``ContextBuilder`` or ``load``."""

    header: dict[str, Any]
    """As that of a ledger, with a ``schema`` of its own."""
    contigs: tuple[str, ...]
    block: int
    """Bases per block."""
    contexts: tuple[int, ...]
    """In bases, ascending; the last is the whole window."""
    windows: np.ndarray
    """int64 [windows, 4]: window index, contig index, start, end (0-based half-open), sorted by index."""
    context: np.ndarray
    """int64 [rows]: index into ``contexts``."""
    window: np.ndarray
    """int64 [rows]: the window's index in the window table."""
    contig: np.ndarray
    """int64 [rows]: index into ``contigs``."""
    block_start: np.ndarray
    """int64 [rows]: first base of the block."""
    seen: np.ndarray
    """int64 [rows]: 1 for seen bases, 0 for novel ones."""
    count: np.ndarray
    """int64 [rows]: scored bases."""
    nats_acgt_sum: np.ndarray
    """float64 [rows]: negative log likelihood over A, C, G and T."""
    adaptive_nats_sum: np.ndarray | None = None
    """float64 [rows]: that of the adaptive baseline, which reads the same pieces."""

    def save(self, path: str | Path) -> None:
        """Write the ledger as ``.npz``, by temporary file and rename."""
        meta = {
            "header": self.header,
            "contigs": self.contigs,
            "block": self.block,
            "contexts": self.contexts,
        }
        columns = {name: getattr(self, name) for name in (*_DTYPES, *_OPTIONAL)}
        write_npz(Path(path), KIND, meta, {k: column for k, column in columns.items() if column is not None})

    @classmethod
    def load(cls, path: str | Path) -> ContextLedger:
        """Read one. Raises InputError where the file is broken, foreign or from a newer genoctx."""
        meta, arrays = read_npz(Path(path), KIND, _DTYPES, _OPTIONAL)
        try:
            schema = meta["header"]["schema"]
            if schema != SCHEMA:
                raise InputError(f"{path} has schema {schema}, this genoctx reads {SCHEMA}", "update genoctx")
            ledger = cls(
                meta["header"], tuple(meta["contigs"]), meta["block"], tuple(meta["contexts"]), **arrays
            )
            wrong = ledger.problem()
        except (KeyError, TypeError, IndexError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            raise InputError(
                f"{path} is not a sound ledger of contexts: {wrong}",
                "run `genoctx eval --contexts` again",
            )
        return ledger

    def problem(self) -> str:
        """What is wrong with the rows, in words; empty if nothing is."""
        if wrong := problem_of_windows(self.windows, self.contigs, self.block):
            return wrong
        contexts = np.array(self.contexts, dtype=np.int64)
        lengths = self.windows[:, 3] - self.windows[:, 2]
        if not len(contexts) or contexts[0] < 1 or (np.diff(contexts) <= 0).any():
            return "contexts that do not ascend"
        if (lengths != contexts[-1]).any():
            return "windows that are not as long as the longest context"
        sums = [c for c in (self.nats_acgt_sum, self.adaptive_nats_sum) if c is not None]
        columns = [*sums, self.contig, *(getattr(self, key) for key in _KEYS)]
        if any(column.shape != self.count.shape for column in columns):
            return "columns of different lengths"
        if not (np.isin(self.context, np.arange(len(contexts))).all() and np.isin(self.seen, (0, 1)).all()):
            return "rows of contexts that are not listed, or neither seen nor novel"
        if not strictly_ascending(*(getattr(self, key) for key in _KEYS)):
            return "rows that are not sorted, or a block that is there twice"
        if (self.count < 1).any() or not all(np.isfinite(column).all() for column in sums):
            return "a row without bases, or a loss that is not a number"
        return self._problem_of_places() or self._problem_of_counts()

    def _problem_of_places(self) -> str:
        indices = self.windows[:, 0]
        if not np.isin(self.window, indices).all():
            return "rows of windows that are not in the window table"
        mine = self.windows[np.searchsorted(indices, self.window)]
        if (mine[:, 1] != self.contig).any() or (self.block_start % self.block).any():
            return "rows that do not lie on their window's contig and blocks"
        low, high = np.maximum(mine[:, 2], self.block_start), self.block_start + self.block
        return "a base counted twice" if (self.count > np.minimum(mine[:, 3], high) - low).any() else ""

    def _problem_of_counts(self) -> str:
        """Every context must have the bases of every other, and no more than half of a window."""
        columns = np.stack([getattr(self, key) for key in (*_KEYS[1:], "count")], axis=1)
        last = columns[self.context == len(self.contexts) - 1]
        for i in range(len(self.contexts) - 1):
            if not np.array_equal(columns[self.context == i], last):
                return f"context {self.contexts[i]:,} has other bases than {self.contexts[-1]:,}"
        half = len(self.windows) * -(-self.contexts[-1] // 2)
        return "more bases than the second halves of the windows hold" if last[:, 3].sum() > half else ""


class ContextBuilder:
    """Collects the second halves of windows, each once at every context."""

    def __init__(
        self, header: Mapping[str, Any], contigs: Sequence[str], contexts: Sequence[int], block: int = BLOCK
    ) -> None:
        """``header`` as in ``Ledger.header``; ``contexts`` ascending, in bases, the window's at the end."""
        self._header: dict[str, Any] = json.loads(json.dumps({**header, "schema": SCHEMA}, allow_nan=False))
        self._contigs, self._contexts, self._block = tuple(contigs), tuple(contexts), block
        self._windows: dict[int, tuple[int, int, int]] = {}
        self._rows: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def add(
        self,
        context: int,
        index: int,
        place: tuple[str, int, int],
        positions: np.ndarray,
        seen: np.ndarray,
        nats: np.ndarray,
        adaptive: np.ndarray | None = None,
    ) -> None:
        """All scored bases of the second half of window ``index`` at contexts[``context``]; once.

        ``place`` is the window's contig, start and end; ``positions`` int64, 0-based on the contig, each
        once; ``seen`` bool and ``nats`` floats (over A, C, G and T) of the same length, and so ``adaptive``,
        those of the baseline, always or never. Raises ValueError for what was added before, GenoctxError for a
        loss that is not a number.
        """
        contig, start, end = place
        row = (self._contigs.index(contig), start, end)
        if (context, index) in self._rows or self._windows.setdefault(index, row) != row:
            raise ValueError(f"window {index} was added before at context {self._contexts[context]}")
        if not np.isfinite(nats).all():
            raise GenoctxError(
                f"the loss of {contig}:{positions[int(np.isfinite(nats).argmin())] + 1} is not a number",
                "the model diverged or its weights are broken; no window is left out of an average",
            )
        first = start // self._block
        cell = 2 * (positions // self._block - first) + seen
        cells = 2 * ((end - 1) // self._block - first + 1)
        count = np.bincount(cell, minlength=cells)
        held = np.flatnonzero(count)
        losses = (nats,) if adaptive is None else (nats, adaptive)
        sums = (np.bincount(cell, loss, minlength=cells)[held] for loss in losses)
        self._rows[context, index] = ((first + held // 2) * self._block, held % 2, count[held], *sums)

    def build(self) -> ContextLedger:
        """The ledger. Raises GenoctxError unless all contexts have the same bases of the same windows."""
        order = sorted(self._rows)
        windows = np.array([(i, *self._windows[i]) for i in sorted(self._windows)], dtype=np.int64).reshape(
            -1, 4
        )
        lengths = [len(self._rows[key][0]) for key in order]
        context, window = np.repeat(np.array(order, dtype=np.int64).reshape(-1, 2), lengths, axis=0).T
        losses = max(1, len(next(iter(self._rows.values()), ())) - 3)
        empty = (np.zeros(0, dtype=np.int64),) * 3 + (np.zeros(0),) * losses
        columns = zip(empty, *(self._rows[key] for key in order), strict=True)
        block_start, seen, count, *sums = (np.concatenate(column) for column in columns)
        place = np.searchsorted(windows[:, 0], window)
        made = ContextLedger(
            dict(self._header),
            self._contigs,
            self._block,
            self._contexts,
            windows,
            context=context.copy(),
            window=window.copy(),
            contig=windows[place, 1],
            block_start=block_start,
            seen=seen,
            count=count,
            nats_acgt_sum=sums[0],
            adaptive_nats_sum=sums[1] if len(sums) > 1 else None,
        )
        if wrong := made.problem():
            raise GenoctxError(
                f"the contexts do not compare: {wrong}", "please report this, with the command"
            )
        return made
