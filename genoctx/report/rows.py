"""What a ledger is: rows of additive sums of held-out loss, their file, their checks.

One row per (window, block); a block is a stretch of ``block`` bases aligned to contig coordinates.
Rows hold sums and counts, never means, so ledgers of ranks or of pieces merge by addition. The same
bases by stratum, position and probability stand beside them (``strata.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.report.npz import read_npz, write_npz
from genoctx.report.strata import (
    CALIBRATION_DTYPES,
    POSITION_DTYPES,
    STRATA_DTYPES,
    Calibration,
    Positions,
    Strata,
    strictly_ascending,
)

SCHEMA = 2
OLDEST_SCHEMA = 1
"""Ledgers of schema 1 have rows alone."""
KIND = "genoctx-ledger"
BLOCK = 8192

IDENTITY = (
    *("schema", "model", "checkpoint", "step", "store_digest", "windows_digest"),
    *("split", "context", "strand"),
)
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
_PARTS = {"strata": STRATA_DTYPES, "positions": POSITION_DTYPES, "calibration": CALIBRATION_DTYPES}


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
    ``strand`` (``+``: windows as in the table; ``-``: each from its other end); ``limit`` (windows at most;
    0: all of the split); ``created``, ``command``. Other keys are kept. The digest of the table is the sha256
    (hex) of its file."""
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
    strata: Strata | None = None
    positions: Positions | None = None
    calibration: Calibration | None = None

    def totals(self) -> Totals:
        """Sums over all rows, exact whatever their order."""
        full, acgt, squares = (math.fsum(getattr(self, name)) for name in SUMS)
        return Totals(int(self.count.sum()), full, acgt, squares, len(self.windows), dict(self.excluded))

    def save(self, path: str | Path) -> None:
        """Write the ledger as ``.npz``, by temporary file and rename."""
        parts = [part for part in _PARTS if getattr(self, part) is not None]
        meta = {
            "header": self.header,
            "contigs": self.contigs,
            "block": self.block,
            "excluded": self.excluded,
            "parts": parts,
            "strata": self.strata.names if self.strata else (),
        }
        arrays = {name: getattr(self, name) for name in _DTYPES}
        for part in parts:
            held = getattr(self, part)
            arrays |= {f"{part}.{name}": getattr(held, name) for name in _PARTS[part]}
        write_npz(Path(path), KIND, meta, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """Read a ledger. Raises InputError where the file is broken, foreign or from a newer genoctx."""
        optional = {f"{part}.{name}": kind for part, kinds in _PARTS.items() for name, kind in kinds.items()}
        meta, arrays = read_npz(Path(path), KIND, _DTYPES, optional)
        try:
            schema = meta["header"]["schema"]
            if schema not in range(OLDEST_SCHEMA, SCHEMA + 1):
                raise InputError(
                    f"{path} has ledger schema {schema}, this genoctx reads {OLDEST_SCHEMA} to {SCHEMA}",
                    "update genoctx",
                )
            rows: dict[str, Any] = {name: arrays[name] for name in _DTYPES}
            ledger = cls(
                meta["header"],
                tuple(meta["contigs"]),
                meta["block"],
                **rows,
                excluded=meta["excluded"],
                **_read_parts(meta, arrays),
            )
            wrong = ledger.problem()
        except (KeyError, TypeError, IndexError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            raise InputError(f"{path} is not a sound ledger: {wrong}", "run `genoctx eval` again")
        return ledger

    def problem(self) -> str:
        """What is wrong with the rows, in words; empty if nothing is."""
        return " and ".join(wrong for wrong in self._problems() if wrong)

    def _problems(self) -> Iterator[str]:
        """The first thing that is wrong with the rows, or what is with the parts beside them."""
        if wrong := self._problem_of_rows():
            yield wrong
            return
        scored = int(self.count.sum())
        if self.strata is not None:
            yield self.strata.problem(self.window, self.block_start, self.count)
        if self.positions is not None:
            yield self.positions.problem(scored)
        if self.calibration is not None:
            yield self.calibration.problem(scored)

    def _problem_of_rows(self) -> str:
        rows = len(self.count)
        if wrong := problem_of_windows(self.windows, self.contigs, self.block):
            return wrong
        if any(getattr(self, name).shape != (rows,) for name in _DTYPES if name != "windows"):
            return "columns of different lengths"
        indices = self.windows[:, 0]
        if not np.isin(self.window, indices).all():
            return "rows of windows that are not in the window table"
        mine = self.windows[np.searchsorted(indices, self.window)] if rows else np.zeros((0, 4), np.int64)
        if (mine[:, 1] != self.contig).any() or (self.block_start % self.block).any():
            return "rows that do not lie on their window's contig and blocks"
        stop = np.minimum(mine[:, 3], self.block_start + self.block)
        room = stop - np.maximum(mine[:, 2], self.block_start)
        if rows and ((self.count < 1).any() or (self.count > room).any()):
            return "a base counted twice, or a row without bases"
        if not strictly_ascending(self.window, self.block_start):
            return "rows that are not sorted, or a block that has two"
        if not all(np.isfinite(getattr(self, name)).all() for name in SUMS):
            return "a loss that is not a number"
        return ""


def problem_of_windows(windows: np.ndarray, contigs: tuple[str, ...], block: int) -> str:
    """What is wrong with the windows of a ledger, in words; empty if nothing is."""
    if windows.ndim != 2 or windows.shape[1] != 4:
        return "the window table has no four columns"
    if block < 1 or not np.isin(windows[:, 1], np.arange(len(contigs))).all():
        return "windows on contigs that are not listed"
    if (np.diff(windows[:, 0]) <= 0).any():
        return "a window that is there twice, or windows that are not sorted"
    return ""


def _read_parts(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The parts that the file says it has; KeyError for one that it has not."""
    found: dict[str, Any] = {
        part: {name: arrays[f"{part}.{name}"] for name in _PARTS[part]} for part in meta.get("parts", ())
    }
    if "strata" in found:
        found["strata"] = Strata(tuple(meta["strata"]), **found["strata"])
    if "positions" in found:
        found["positions"] = Positions(**found["positions"])
    if "calibration" in found:
        found["calibration"] = Calibration(**found["calibration"])
    return found


def bits_per_base(nats: float, count: int) -> float:
    """``nats`` over ``count`` bases in bits per base: the one division. Raises InputError for no bases."""
    if count < 1:
        raise InputError("no base was scored", "check the split and the windows that were evaluated")
    return nats / (math.log(2) * count)
