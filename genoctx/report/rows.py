"""What a ledger is: rows of additive sums of held-out loss, their file, their checks.

One row per (window, block); a block is a stretch of ``block`` bases aligned to contig coordinates.
Rows hold sums and counts, never means, so ledgers of ranks or of pieces merge by addition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.report.npz import read_npz, write_npz

SCHEMA = 1
KIND = "genoctx-ledger"
BLOCK = 8192

IDENTITY = ("schema", "model", "checkpoint", "step", "store_digest", "windows_digest", "split", "context")
"""Header keys that must agree before two ledgers are parts of one evaluation."""

SUMS = ("nats_full_sum", "nats_acgt_sum", "nats_full_sq_sum")
_DTYPES = {
    "windows": "i8",
    "contig": "i8",
    "window": "i8",
    "block_start": "i8",
    "count": "i8",
    **dict.fromkeys(SUMS, "f8"),
}


@dataclass(frozen=True)
class Totals:
    """Sums over all rows. ``count`` in bases, sums in nats (squares in nats^2), ``windows`` in windows."""

    count: int
    nats_full_sum: float
    nats_acgt_sum: float
    nats_full_sq_sum: float
    windows: int
    excluded: dict[str, int] = field(default_factory=dict)

    @property
    def bits_full(self) -> float:
        """Bits per base over the full vocabulary."""
        return bits_per_base(self.nats_full_sum, self.count)

    @property
    def bits_acgt(self) -> float:
        """Bits per base, renormalised over A, C, G and T."""
        return bits_per_base(self.nats_acgt_sum, self.count)


@dataclass(frozen=True, eq=False)
class Ledger:
    """Rows sorted by window and block. Build one with ``LedgerBuilder``, ``Ledger.load`` or ``merge``."""

    header: dict[str, Any]
    """JSON values. The report reads ``schema``; ``model``, ``checkpoint`` (a digest), ``step``; ``store`` and
    ``windows`` (paths), ``store_digest``, ``windows_digest``, ``split``; ``context``, ``chunk`` (in tokens);
    ``created``, ``command``. Other keys are kept. The digest of the table is the sha256 (hex) of its file."""
    contigs: tuple[str, ...]
    block: int
    """Bases per block."""
    windows: np.ndarray
    """int64 [windows, 4]: window index, contig index, start, end (0-based half-open), sorted by index."""
    contig: np.ndarray
    """int64 [rows]: index into ``contigs``."""
    window: np.ndarray
    """int64 [rows]: the window's index in the window table."""
    block_start: np.ndarray
    """int64 [rows]: first base of the block, a multiple of ``block``; the window may start later."""
    count: np.ndarray
    """int64 [rows]: scored bases."""
    nats_full_sum: np.ndarray
    """float64 [rows]: negative log likelihood over the full vocabulary."""
    nats_acgt_sum: np.ndarray
    """float64 [rows]: the same, renormalised over A, C, G and T."""
    nats_full_sq_sum: np.ndarray
    """float64 [rows]: squares of the full-vocabulary nats."""
    excluded: dict[str, int]
    """Bases of the windows that were no targets, by reason."""

    def totals(self) -> Totals:
        """Sums over all rows, exact whatever their order."""
        full, acgt, squares = (math.fsum(getattr(self, name)) for name in SUMS)
        return Totals(int(self.count.sum()), full, acgt, squares, len(self.windows), dict(self.excluded))

    def save(self, path: str | Path) -> None:
        """Write the ledger as ``.npz``, by temporary file and rename."""
        meta = {
            "header": self.header,
            "contigs": self.contigs,
            "block": self.block,
            "excluded": self.excluded,
        }
        write_npz(Path(path), KIND, meta, {name: getattr(self, name) for name in _DTYPES})

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """Read a ledger. Raises InputError where the file is broken, foreign or from a newer genoctx."""
        meta, arrays = read_npz(Path(path), KIND, _DTYPES)
        try:
            schema = meta["header"]["schema"]
            if schema != SCHEMA:
                raise InputError(
                    f"{path} has ledger schema {schema}, this genoctx reads {SCHEMA}", "update genoctx"
                )
            ledger = cls(
                meta["header"], tuple(meta["contigs"]), meta["block"], **arrays, excluded=meta["excluded"]
            )
            wrong = ledger.problem()
        except (KeyError, TypeError, IndexError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            raise InputError(f"{path} is not a sound ledger: {wrong}", "run `genoctx eval` again")
        return ledger

    def problem(self) -> str:
        """What is wrong with the rows, in words; empty if nothing is."""
        rows = len(self.count)
        if self.windows.ndim != 2 or self.windows.shape[1] != 4:
            return "the window table has no four columns"
        if self.block < 1 or not np.isin(self.windows[:, 1], np.arange(len(self.contigs))).all():
            return "windows on contigs that are not listed"
        if any(getattr(self, name).shape != (rows,) for name in _DTYPES if name != "windows"):
            return "columns of different lengths"
        indices = self.windows[:, 0]
        if (np.diff(indices) <= 0).any() or not np.isin(self.window, indices).all():
            return "rows of windows that are not in the window table"
        mine = self.windows[np.searchsorted(indices, self.window)] if rows else np.zeros((0, 4), np.int64)
        if (mine[:, 1] != self.contig).any() or (self.block_start % self.block).any():
            return "rows that do not lie on their window's contig and blocks"
        stop = np.minimum(mine[:, 3], self.block_start + self.block)
        room = stop - np.maximum(mine[:, 2], self.block_start)
        if rows and ((self.count < 1).any() or (self.count > room).any()):
            return "a base counted twice, or a row without bases"
        if not all(np.isfinite(getattr(self, name)).all() for name in SUMS):
            return "a loss that is not a number"
        return ""


def bits_per_base(nats: float, count: int) -> float:
    """``nats`` over ``count`` bases in bits per base: the one division. Raises InputError for no bases."""
    if count < 1:
        raise InputError("no base was scored", "check the split and the windows that were evaluated")
    return nats / (math.log(2) * count)
