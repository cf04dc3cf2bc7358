"""What every reader does with a record: check its name, choose it, turn its letters into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.alphabet import BLANKS, GAPS, ILLEGAL, LOWER, PACKED_TABLE, URACIL
from genoctx.genome.cut import Cutter
from genoctx.genome.faults import located, no_base
from genoctx.genome.lines import advance
from genoctx.genome.piece import Piece
from genoctx.genome.record_names import RecordNames
from genoctx.genome.select import ReadOptions, Selection, Stretch
from genoctx.genome.source import Source

_GAPS_TO_N = bytes.maketrans(GAPS, b"N" * len(GAPS))


class _Record:
    """The record that is being read."""

    __slots__ = ("bases", "cutter", "line", "name")

    def __init__(self, name: str, line: int, cutter: Cutter | None) -> None:
        self.name, self.line, self.cutter = name, line, cutter
        self.bases = 0


class _Run(NamedTuple):
    """Consecutive text of a record, and where it begins."""

    record: _Record
    text: bytes
    packed: bytes
    line: int
    column: int


class Records:
    """The records of one file. A parser calls ``begin`` at each name, ``add`` for each part of its
    sequence, and hands on what ``take`` returns, once a block: small records are then encoded together.

    The options apply to what ``begin`` and ``add`` are told; ``notes`` says what was read over.
    """

    def __init__(
        self, source: Source, seen: dict[str, str], options: ReadOptions, selection: Selection
    ) -> None:
        self.dropped = BLANKS
        """Bytes of a sequence that mean nothing; a format with position numbers adds the digits."""
        self._path = source.path
        self._names = RecordNames(source.path, seen)
        self._options = options
        self._selection = selection
        self._record: _Record | None = None
        """The record that ``add`` adds to; None while one is left out."""
        self._runs: list[_Run] = []
        self._taken: _Record | None = None
        """The record of the last run that ``take`` saw."""
        self._star: tuple[_Record, int, int] | None = None
        """The latest ``*``, with line and column: an error unless its record ends there."""
        self._gaps = self._stars = self._overlaps = 0

    def begin(self, word: bytes, line: int) -> str | None:
        """A record called ``word`` begins at ``line``. Returns its name, None if it is left out.

        Raises InputError for a name that cannot be one or is taken.
        """
        try:
            name, stretches = self._admit(word, line)
        except InputError:
            self.take()  # a base before it may be wrong: the first fault counts
            raise
        if stretches is None:
            self._record = None
            return None
        self._record = _Record(name, line, Cutter(stretches, line) if stretches else None)
        self._runs.append(_Run(self._record, b"", b"", line, 0))
        return name

    def add(self, text: bytes, line: int, column: int) -> int:
        """More of the record's text, which begins at ``line`` and ``column`` (bytes before it there).

        Returns how many bytes of it mean nothing; 0 for a record that is left out.
        """
        if self._record is None:
            return 0
        packed = text.translate(PACKED_TABLE, self.dropped)
        if packed:
            self._runs.append(_Run(self._record, text, packed, line, column))
        return len(text) - len(packed)

    def take(self) -> list[Piece]:
        """The pieces since the last call. Raises InputError at the first byte that is no base."""
        runs, self._runs = self._runs, []
        packed, top = _join(runs)
        if top == ILLEGAL:
            runs = [self._mended(run) for run in runs]
            packed, top = _join(runs)
        elif self._star:
            for run in runs:
                self._refuse_more(run.record, run.packed)
        codes = packed & (LOWER - 1)
        lower = packed >= LOWER if top < URACIL else (packed & LOWER).astype(bool)
        pieces: list[Piece] = []
        first = uracils = 0
        for run in runs:
            record = run.record
            if record is not self._taken:
                self._end(record)
            last = first + len(run.packed)
            if record.cutter is not None:
                pieces += record.cutter.feed(record.bases, packed[first:last])
            else:
                if top >= URACIL:
                    uracils = int(np.count_nonzero(packed[first:last] >= URACIL))
                pieces.append(
                    Piece(
                        record.name, record.line, record.bases, codes[first:last], lower[first:last], uracils
                    )
                )
            record.bases += last - first
            first = last
        return pieces

    def finish(self) -> list[Piece]:
        """The last pieces: the file ends here. Raises InputError like ``take``."""
        pieces = self.take()
        self._end(None)
        return pieces

    def fail(self, line: int, what: str, hint: str) -> NoReturn:
        """Raise InputError for ``line``, unless a base before it is wrong: the first fault counts."""
        self.take()
        raise located(self._path, line, what, hint)

    def notes(self) -> Iterator[str]:
        """What was read over, with numbers."""
        yield from self._names.notes()
        if self._gaps:
            fate = "dropped" if self._options.gaps == "drop" else "read as N"
            yield f"{self._path}: {self._gaps:,} gap characters were {fate}"
        if self._stars:
            yield f"{self._path}: {self._stars:,} '*' at the end of a record were dropped"
        if self._overlaps:
            yield f"{self._path}: {self._overlaps:,} regions overlap an earlier one: shared bases are read twice"

    def _admit(self, word: bytes, line: int) -> tuple[str, tuple[Stretch, ...] | None]:
        """Name and stretches of a record, see ``Selection.choose``."""
        name = self._names.legal(word, line)
        if self._options.rename:
            name = self._names.free(name, line)
        try:
            stretches = self._selection.choose(name)
        except InputError as error:
            raise located(self._path, line, error.message, error.hint) from error
        if stretches is not None and not self._options.rename:
            self._names.claim(name, line)
        for stretch in stretches or ():
            self._names.claim(stretch.name, line)
        return name, stretches

    def _mended(self, run: _Run) -> _Run:
        """``run`` without what the options and a final ``*`` allow. InputError for anything else."""
        letters = run.text.translate(None, self.dropped)
        if self._options.gaps != "error":
            bare = letters.translate(None, GAPS)
            self._gaps += len(letters) - len(bare)
            letters = bare if self._options.gaps == "drop" else letters.translate(_GAPS_TO_N)
        self._refuse_more(run.record, letters)
        if letters.endswith(b"*"):
            letters = letters[:-1]
            before = run.text[: run.text.rindex(b"*")]
            self._star = (run.record, *advance(before, run.line, run.column))
            self._stars += 1
        packed = letters.translate(PACKED_TABLE)
        if ILLEGAL in packed:
            legal = self.dropped + (GAPS if self._options.gaps != "error" else b"")
            as_bases = run.text.translate(bytes.maketrans(legal, b"A" * len(legal)))
            index = as_bases.translate(PACKED_TABLE).index(ILLEGAL)
            where = advance(run.text[:index], run.line, run.column)
            raise no_base(self._path, *where, run.text[index], run.record.name)
        return run._replace(packed=packed)

    def _refuse_more(self, record: _Record, letters: bytes) -> None:
        if self._star and self._star[0] is record and letters:
            raise no_base(self._path, *self._star[1:], ord("*"), record.name)

    def _end(self, following: _Record | None) -> None:
        """All bases of the last record were taken; ``following`` begins."""
        record, self._taken = self._taken, following
        if record is None or record.cutter is None:
            return
        self._overlaps += record.cutter.overlaps
        stretch = record.cutter.incomplete()
        if stretch is not None:
            raise located(
                self._path,
                record.line,
                f"the region {stretch.name} reaches beyond the contig, which has {record.bases:,} bases",
                "does the region belong to this genome assembly?",
                record.name,
            )


def _join(runs: Sequence[_Run]) -> tuple[np.ndarray, int]:
    """The packed bases of ``runs`` in a row, and the greatest value among them (0 if there are none)."""
    packed = np.frombuffer(b"".join([run.packed for run in runs]), dtype=np.uint8)
    return packed, int(packed.max(initial=0))
