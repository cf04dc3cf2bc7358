"""FASTA, streamed: contigs come in pieces of about 1 MiB, so memory does not grow with the genome.

Line ends may be LF, CRLF or CR, even mixed; empty lines and blanks are skipped. Everything else that
is not an IUPAC nucleotide letter is an error with file, line, column and contig.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.alphabet import BLANKS, CODE_TABLE, ILLEGAL, LETTERS, encode
from genoctx.genome.formats import BOM
from genoctx.genome.source import Source

_LINE_END = re.compile(rb"[\r\n]")
_LONGEST_HEADER = 1 << 20
_CHECK_TABLE = bytes(0 if byte in BLANKS else code for byte, code in enumerate(CODE_TABLE))


@dataclass(frozen=True)
class Piece:
    """Consecutive bases of one contig. Every contig begins with an empty piece at its header."""

    contig: str
    """The first word after ``>``."""
    line: int
    """The header's line, counted from 1."""
    start: int
    """Position of the first base, 0-based."""
    codes: np.ndarray
    """uint8, see ``alphabet``."""
    lower: np.ndarray
    """bool per base: written in lower case."""
    uracils: int = 0
    """How many bases were written U."""


def read_records(
    path: str | Path | Source,
    *,
    seen: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Piece]:
    """The contigs of a FASTA file, piece by piece, in file order.

    ``path`` may be plain, gzip or bgzip, judged by content, or ``-`` for standard input; pass a
    ``Source`` to learn its digest afterwards. ``seen`` maps known contig names to where they stand
    (share it between files); ``progress`` is called with the number of file bytes just read.
    Raises InputError.
    """
    source = path if isinstance(path, Source) else Source(path, progress)
    parser = _Parser(source.path, {} if seen is None else seen)
    for number, block in enumerate(source.blocks()):
        if number == 0 and block.startswith(BOM):
            source.notes.append(f"{source.path}: a UTF-8 byte order mark was skipped")
            block = block[len(BOM) :]
        yield from parser.feed(block)
    yield from parser.finish()


class _Parser:
    """Where in the file we are: line, column, contig. Fed block by block."""

    def __init__(self, path: str, seen: dict[str, str]) -> None:
        self.path = path
        self.seen = seen
        self.line = 1
        self.column = 0
        """Bytes of the current line that earlier segments held."""
        self.contig: str | None = None
        self.contig_line = 0
        self.bases = 0
        self.header: bytes | None = None
        """The header line so far while inside one."""
        self.held = b""

    def feed(self, block: bytes) -> Iterator[Piece]:
        block = self.held + block
        # a CR at the very end may be half of a CRLF: decide when the next byte is here
        self.held = b"\r" if block.endswith(b"\r") else b""
        yield from self._parse(block[:-1] if self.held else block)

    def finish(self) -> Iterator[Piece]:
        yield from self._parse(self.held)
        if self.header is not None:
            yield self._begin_contig()
        if self.contig is None:
            raise InputError(f"{self.path} holds no sequence", "give a FASTA file: '>name', then bases")

    def _parse(self, block: bytes) -> Iterator[Piece]:
        position = 0
        while position < len(block):
            if self.header is not None:
                end = _LINE_END.search(block, position)
                stop = end.start() if end else len(block)
                self.header += block[position:stop]
                if len(self.header) > _LONGEST_HEADER:
                    raise self._error(self.line, "a header line longer than 1 MiB", "is this a FASTA file?")
                position = stop
                if end:
                    yield self._begin_contig()
                continue
            mark = block.find(b">", position)
            stop = mark if mark >= 0 else len(block)
            if stop > position:
                yield from self._sequence(block[position:stop] if stop - position < len(block) else block)
            position = stop
            if mark >= 0:
                self._begin_header()
                position += 1

    def _begin_header(self) -> None:
        if self.column:
            raise self._error(
                self.line,
                f"'>' inside a sequence line, column {self.column + 1}",
                "a line end is missing before this header, as when files are joined whose last line has none",
            )
        self.header = b""

    def _begin_contig(self) -> Piece:
        assert self.header is not None
        words = self.header.split(None, 1)
        if not words:
            raise self._error(self.line, "a header without a name", "write a name after '>'")
        name = self._name(words[0])
        if name in self.seen:
            raise self._error(
                self.line,
                f"the name {name!r} is used twice, first in {self.seen[name]}",
                "a contig is known by the first word after '>'; make these words unique",
            )
        self.seen[name] = f"{self.path}, line {self.line}"
        self.contig, self.contig_line, self.bases = name, self.line, 0
        self.header = None
        return self._piece(b"")

    def _name(self, word: bytes) -> str:
        try:
            name = word.decode()
        except UnicodeDecodeError:
            name = word.decode("latin-1")
        if not name.isprintable() or any(c.isspace() for c in name) or name.startswith("#"):
            raise self._error(
                self.line,
                f"{name!r} cannot be a contig name",
                "use printable characters and no '#' in front: the name goes into BED files",
            )
        return name

    def _sequence(self, segment: bytes) -> Iterator[Piece]:
        """Text between two headers, or a part of it, line ends included."""
        letters = segment.translate(None, BLANKS)
        if letters and self.contig is None:
            raise self._no_header(segment)
        if letters:
            piece = self._piece(letters)
            if piece.codes.max() >= len(LETTERS):
                raise self._illegal(segment)
            self.bases += len(letters)
            yield piece
        self._advance(segment)

    def _piece(self, letters: bytes) -> Piece:
        assert self.contig is not None
        uracils = sum(letters.count(u) for u in (b"U", b"u") if u in letters)
        lower = np.frombuffer(letters, dtype=np.uint8) >= ord("a")
        return Piece(self.contig, self.contig_line, self.bases, encode(letters), lower, uracils)

    def _advance(self, segment: bytes) -> None:
        self.line += count_lines(segment)
        last = max(segment.rfind(b"\n"), segment.rfind(b"\r"))
        self.column = len(segment) - 1 - last if last >= 0 else self.column + len(segment)

    def _locate(self, segment: bytes) -> int:
        """Index of the first byte of ``segment`` that is no base; the position moves up to it."""
        checked = np.frombuffer(segment.translate(_CHECK_TABLE), dtype=np.uint8)
        index = int(np.argmax(checked == ILLEGAL))
        self._advance(segment[:index])
        return index

    def _no_header(self, segment: bytes) -> InputError:
        self._advance(segment[: len(segment) - len(segment.lstrip(BLANKS))])
        line = _LINE_END.split(segment.lstrip(BLANKS), maxsplit=1)[0]
        shown = line[:40].decode("ascii", "backslashreplace")
        return self._error(
            self.line,
            f"text before the first '>': {shown!r}",
            "a FASTA file has a line '>name' before each sequence; is this the right file?",
        )

    def _illegal(self, segment: bytes) -> InputError:
        byte = segment[self._locate(segment)]
        shown = repr(chr(byte)) if 32 < byte < 127 else f"byte 0x{byte:02x}"
        return self._error(
            self.line, f"column {self.column + 1}: {shown} is not a nucleotide", _hint_for(byte), self.contig
        )

    def _error(self, line: int, what: str, hint: str, contig: str | None = None) -> InputError:
        where = f"{self.path}, line {line:,}" + (f" (contig {contig})" if contig else "")
        return InputError(f"{where}: {what}", hint)


def count_lines(text: bytes) -> int:
    """Line ends in ``text``: LF, CRLF or CR, each once."""
    count = text.count(b"\n")
    if b"\r" in text:
        count += text.count(b"\r") - text.count(b"\r\n")
    return count


def _hint_for(byte: int) -> str:
    char = chr(byte)
    if char in "-.~":
        return "gaps of an alignment? remove them, or write N where bases are unknown"
    if char in "xX":
        return "write N for a masked or unknown base; if this is a protein, give the genome instead"
    if char.upper() in "EFILPQJOZ*":
        return "it looks like a protein; give the nucleotide sequence of the genome"
    if char in "0123456789":
        return "remove the position numbers: only letters belong between the headers"
    if char in "+@;#":
        return "FASTQ reads or comment lines? only '>name' lines and bases belong in a FASTA file"
    return f"the nucleotide letters are {LETTERS.decode()} and U; is the file damaged?"
