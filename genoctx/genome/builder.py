"""Writes the files of a store from pieces of contigs, counting as it goes: one pass, flat memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from types import TracebackType

import numpy as np

from genoctx.genome.alphabet import LETTERS, N_CODE, gc_fraction
from genoctx.genome.batch import Batch
from genoctx.genome.manifest import Contig
from genoctx.genome.outfile import BitFile, OutFile
from genoctx.genome.piece import Piece
from genoctx.genome.twins import Anchors

CODES = "codes.u8"
SOFTMASK = "softmask.bits"

_BATCH = 1 << 18
"""Bases that are worth a round of numpy. Less than a block of the reader, so that its pieces stay alone."""
_COPIED = 1 << 20


class _Tally:
    """What is known of one contig so far."""

    __slots__ = ("counts", "line", "lower", "n_runs", "name", "offset", "sha", "size", "source", "uracils")

    def __init__(self, piece: Piece, offset: int, source: str) -> None:
        self.name, self.line, self.source, self.offset = piece.contig, piece.line, source, offset
        self.counts = [0] * len(LETTERS)
        self.size = self.lower = self.uracils = self.n_runs = 0
        self.sha = hashlib.sha256()

    def contig(self) -> Contig:
        counts = self.counts
        rare = enumerate(counts[N_CODE + 1 :], start=N_CODE + 1)
        return Contig(
            name=self.name,
            length=self.size,
            offset=self.offset,
            sha256=self.sha.hexdigest(),
            gc=gc_fraction(counts),
            n_runs=self.n_runs,
            n_count=counts[N_CODE],
            iupac_counts={chr(LETTERS[code]): count for code, count in rare if count},
            softmask_fraction=self.lower / self.size,
            uracil_count=self.uracils,
            source=self.source,
            line=self.line,
        )


@dataclass(frozen=True)
class Built:
    """What a builder knows besides the bytes it wrote."""

    contigs: tuple[Contig, ...]
    empty: tuple[str, ...]
    """Names of records without bases: they are not stored."""
    anchors: Anchors
    softmask_sha256: str


class StoreBuilder:
    """Appends contigs to ``codes.u8`` and ``softmask.bits`` in ``folder``. A context manager."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        """``durable``: ``finish`` waits until the files are on the disk."""
        self.bases = 0
        self._contigs: list[Contig] = []
        self._empty: list[str] = []
        self._anchors = Anchors()
        self._files = ExitStack()
        self._codes = self._files.enter_context(OutFile(folder / CODES, durable=durable))
        self._bits = self._files.enter_context(OutFile(folder / SOFTMASK, durable=durable))
        self._mask = BitFile(self._bits)
        self._pieces: list[Piece] = []
        """Not written yet; together less than ``_BATCH`` bases."""
        self._held = 0
        self._of: list[_Tally] = []
        """The contig of each of them."""
        self._open: _Tally | None = None
        self._after_n = False

    def __enter__(self) -> StoreBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def add(self, piece: Piece, source: str) -> None:
        """The next piece, in reading order; ``source`` is the file name it came from."""
        tally = self._open
        if tally is None or tally.name != piece.contig:
            self._end_contig()
            tally = self._open = _Tally(piece, self.bases, source)
        size = piece.codes.size
        if size:
            self._pieces.append(piece)
            self._of.append(tally)
            tally.size += size
            self.bases += size
            self._held += size
            if self._held >= _BATCH:
                self._flush()

    def append(self, folder: Path, part: Built) -> None:
        """All contigs that another builder has finished in ``folder``."""
        self._end_contig()
        self._flush()
        self._anchors.merge(part.anchors)
        self._contigs += [replace(c, offset=c.offset + self.bases) for c in part.contigs]
        self._empty += part.empty
        bases = sum(contig.length for contig in part.contigs)
        with (folder / CODES).open("rb") as file:
            while block := file.read(_COPIED):
                self._codes.write(block)
        with (folder / SOFTMASK).open("rb") as file:
            for start in range(0, bases, 8 * _COPIED):
                packed = np.frombuffer(file.read(_COPIED), dtype=np.uint8)
                self._mask.write(np.unpackbits(packed, count=min(8 * packed.size, bases - start)).view(bool))
        self.bases += bases

    def finish(self) -> Built:
        """Complete the files."""
        self._end_contig()
        self._flush()
        mask = self._mask.finish()
        self._codes.finish()
        self._bits.finish()
        return Built(tuple(self._contigs), tuple(self._empty), self._anchors, mask)

    def _end_contig(self) -> None:
        tally, self._open = self._open, None
        if tally is None:
            return
        if not tally.size:
            self._empty.append(tally.name)
        elif not self._of or self._of[-1] is not tally:
            self._contigs.append(tally.contig())

    def _flush(self) -> None:
        """Write and count the pieces that are held; contigs that are complete then become final."""
        pieces, self._pieces = self._pieces, []
        tallies, self._of = self._of, []
        self._held = 0
        if not pieces:
            return
        batch = Batch.join(pieces)
        self._codes.write(batch.codes.data)
        self._mask.write(batch.lower)
        self._anchors.add(batch.codes, batch.begins)
        self._count(batch, pieces, tallies)
        self._contigs += [
            tally.contig()
            for tally, following in zip(tallies, [*tallies[1:], self._open], strict=True)
            if tally is not following
        ]

    def _count(self, batch: Batch, pieces: Sequence[Piece], tallies: Sequence[_Tally]) -> None:
        counts = batch.counts()
        lower = batch.lower_counts().tolist()
        runs = batch.n_runs(self._after_n).tolist() if counts[:, N_CODE].any() else [0] * len(pieces)
        self._after_n = bool(batch.codes[-1] == N_CODE)
        for tally, piece, count, low, n_runs in zip(
            tallies, pieces, counts.tolist(), lower, runs, strict=True
        ):
            tally.sha.update(piece.codes.data)
            tally.counts = list(map(add, tally.counts, count))
            tally.lower += low
            tally.n_runs += n_runs
            tally.uracils += piece.uracils
