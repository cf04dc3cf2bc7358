"""Writes the files of a store from pieces of contigs, counting as it goes: one pass, flat memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType

import numpy as np

from genoctx.genome.alphabet import LETTERS, N_CODE, count_codes, gc_fraction
from genoctx.genome.manifest import Contig
from genoctx.genome.reader import Piece

CODES = "codes.u8"
SOFTMASK = "softmask.bits"


class _Tally:
    """What is known of the contig that is being read."""

    def __init__(self, piece: Piece, offset: int, source: str) -> None:
        self.name, self.line, self.source, self.offset = piece.contig, piece.line, source, offset
        self.counts = np.zeros(len(LETTERS), dtype=np.int64)
        self.lower = self.uracils = self.n_runs = 0
        self.ends_in_n = False
        self.sha = hashlib.sha256()

    def add(self, piece: Piece) -> None:
        counts = count_codes(piece.codes)
        self.counts += counts
        self.lower += int(np.count_nonzero(piece.lower))
        self.uracils += piece.uracils
        self.sha.update(piece.codes.data)
        if counts[N_CODE]:
            is_n = piece.codes == N_CODE
            self.n_runs += int(np.count_nonzero(is_n[1:] > is_n[:-1]))
            self.n_runs += bool(is_n[0]) and not self.ends_in_n
        self.ends_in_n = bool(piece.codes[-1] == N_CODE)

    def contig(self) -> Contig:
        length = int(self.counts.sum())
        rare = {LETTERS[c : c + 1].decode(): int(self.counts[c]) for c in range(N_CODE + 1, len(LETTERS))}
        return Contig(
            name=self.name,
            length=length,
            offset=self.offset,
            sha256=self.sha.hexdigest(),
            gc=gc_fraction(self.counts),
            n_runs=self.n_runs,
            n_count=int(self.counts[N_CODE]),
            iupac_counts={letter: count for letter, count in rare.items() if count},
            softmask_fraction=self.lower / length,
            uracil_count=self.uracils,
            source=self.source,
            line=self.line,
        )


class StoreBuilder:
    """Appends contigs to ``codes.u8`` and ``softmask.bits`` in ``folder``. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.contigs: list[Contig] = []
        self.empty: list[str] = []
        """Names of records without bases: they are not stored."""
        self.lower = 0
        self.bases = 0
        self._codes = (folder / CODES).open("wb")
        self._mask = (folder / SOFTMASK).open("wb")
        self._mask_sha = hashlib.sha256()
        self._bits = np.zeros(0, dtype=bool)
        """Up to seven bits that do not fill a byte yet."""
        self._open: _Tally | None = None

    def __enter__(self) -> StoreBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._codes.close()
        self._mask.close()

    def add(self, piece: Piece, source: str) -> None:
        """The next piece, in reading order; ``source`` is the file name it came from."""
        if self._open is None or self._open.name != piece.contig:
            self._close_contig()
            self._open = _Tally(piece, self.bases, source)
        if piece.codes.size:
            self._open.add(piece)
            self._codes.write(piece.codes.data)
            self._write_mask(piece.lower)
            self.bases += piece.codes.size

    def finish(self) -> str:
        """Complete the files durably; returns the sha256 of ``softmask.bits``."""
        self._close_contig()
        if self._bits.size:
            self._write_bytes(np.packbits(self._bits))
        for file in (self._codes, self._mask):
            file.flush()
            os.fsync(file.fileno())
        return self._mask_sha.hexdigest()

    def _close_contig(self) -> None:
        tally, self._open = self._open, None
        if tally is None:
            return
        if self.bases == tally.offset:
            self.empty.append(tally.name)
            return
        self.contigs.append(tally.contig())
        self.lower += tally.lower

    def _write_mask(self, lower: np.ndarray) -> None:
        bits = np.concatenate([self._bits, lower]) if self._bits.size else lower
        whole = bits.size - bits.size % 8
        self._write_bytes(np.packbits(bits[:whole]))
        self._bits = bits[whole:].copy()

    def _write_bytes(self, packed: np.ndarray) -> None:
        self._mask.write(packed.data)
        self._mask_sha.update(packed.data)
