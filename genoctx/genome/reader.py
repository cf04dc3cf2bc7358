"""Sequence files, streamed: contigs come in pieces, so memory does not grow with the genome.

FASTA is parsed here: lines may end with LF, CRLF or CR, even mixed, and have any length; empty lines and
blanks are dropped. What is neither a header nor an IUPAC nucleotide letter is an error with file, line,
column and contig.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NoReturn

from genoctx.errors import InputError
from genoctx.genome.alphabet import BLANKS
from genoctx.genome.lines import LINE_END, advance, count_byte, count_lines
from genoctx.genome.piece import Piece
from genoctx.genome.records import Records
from genoctx.genome.select import ReadOptions, Selection
from genoctx.genome.source import Source

__all__ = ["Piece", "ReadOptions", "Selection", "count_lines", "read_records"]

_LONGEST_HEADER = 1 << 20


def read_records(
    path: str | Path | Source,
    *,
    seen: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    options: ReadOptions | None = None,
    selection: Selection | None = None,
) -> Iterator[Piece]:
    """The contigs of a FASTA or GenBank file, piece by piece, in file order.

    ``path`` may be plain, gzip or bgzip, judged by content, or ``-`` for standard input; pass a
    ``Source`` to learn its digest and notes afterwards. ``seen`` maps known contig names to where they
    stand (share it between files); ``progress`` is called with the number of file bytes just read.
    ``selection``, made from the same ``options``, is shared between files too, and then the caller asks
    it at the end what is ``unused``; without one, that is judged at the end of this file.
    Raises InputError.
    """
    source = path if isinstance(path, Source) else Source(path, progress)
    options = options or ReadOptions()
    chosen = selection or Selection(options)
    records = Records(source, {} if seen is None else seen, options, chosen)
    blocks = source.blocks()
    first = next(blocks, b"")
    text = chain([first], blocks)
    if source.genbank:
        from genoctx.genome.genbank import read_genbank

        yield from read_genbank(source, text, records)
    else:
        yield from _read_fasta(source, text, records)
    source.notes.extend(records.notes())
    if selection is None:
        chosen.require_used()


def _read_fasta(source: Source, blocks: Iterator[bytes], records: Records) -> Iterator[Piece]:
    parser = _Fasta(source.path, records)
    for block in blocks:
        parser.feed(block)
        yield from records.take()
    parser.finish()
    yield from records.finish()
    if parser.blanks:
        source.notes.append(f"{source.path}: {parser.blanks:,} blanks inside sequence lines were dropped")


class _Fasta:
    """Where in the file we are: line, column, header or sequence. Fed block by block."""

    def __init__(self, path: str, records: Records) -> None:
        self.path = path
        self.records = records
        self.blanks = 0
        """Bytes of sequence lines that are neither letters nor line ends."""
        self.line = 1
        self.column = 0
        """Bytes of the current line that earlier segments held."""
        self.inked = False
        """Whether one of them is not a blank."""
        self.header: bytes | None = None
        """The header line so far while inside one."""
        self.headers = 0
        self.held = b""

    def feed(self, block: bytes) -> None:
        block = self.held + block
        # a CR at the very end may be half of a CRLF: decide when the next byte is here
        self.held = b"\r" if block.endswith(b"\r") else b""
        self._parse(block[:-1] if self.held else block)

    def finish(self) -> None:
        if self.header is not None:
            self._end_header()
        if not self.headers:
            raise InputError(f"{self.path} holds no sequence", "give a FASTA file: '>name', then bases")

    def _parse(self, block: bytes) -> None:
        only_lf = b"\r" not in block
        position = 0
        while position < len(block):
            if self.header is not None:
                position = self._header(block, position, only_lf)
                continue
            mark = block.find(b">", position)
            stop = mark if mark >= 0 else len(block)
            if stop > position:
                self._sequence(block[position:stop], only_lf)
            if mark >= 0:
                self._begin_header()
                stop += 1
            position = stop

    def _begin_header(self) -> None:
        if self.inked:
            self.records.fail(
                self.line,
                f"'>' inside a sequence line, column {self.column + 1}",
                "a line end is missing before this header, as when files are joined whose last line has none",
            )
        self.header = b""
        self.column = 0

    def _header(self, block: bytes, position: int, only_lf: bool) -> int:
        """More of the header; returns where it stops, at its line end or that of the block."""
        assert self.header is not None
        if only_lf:
            stop = block.find(b"\n", position)
        else:
            end = LINE_END.search(block, position)
            stop = end.start() if end else -1
        self.header += block[position : stop if stop >= 0 else len(block)]
        if len(self.header) > _LONGEST_HEADER:
            self.records.fail(self.line, "a header line longer than 1 MiB", "is this a FASTA file?")
        if stop < 0:
            return len(block)
        self._end_header()
        return stop

    def _end_header(self) -> None:
        assert self.header is not None
        words = self.header.split(None, 1)
        if not words:
            self.records.fail(self.line, "a header without a name", "write a name after '>'")
        self.header = None
        self.headers += 1
        self.records.begin(words[0], self.line)

    def _sequence(self, segment: bytes, only_lf: bool) -> None:
        """Text between two headers, or a part of it, line ends included."""
        if self.headers:
            dropped = self.records.add(segment, self.line, self.column)
        elif segment.isspace():
            dropped = 0
        else:
            self._no_header(segment)
        ends = lines = count_byte(segment, b"\n")
        if not only_lf:
            lines = count_lines(segment)
            ends += count_byte(segment, b"\r")
        self.blanks += max(0, dropped - ends)
        self.line += lines
        last = segment.rfind(b"\n") if only_lf else max(segment.rfind(b"\n"), segment.rfind(b"\r"))
        tail = segment[last + 1 :]
        if last >= 0:
            self.column, self.inked = 0, False
        self.column += len(tail)
        self.inked |= bool(tail) and not tail.isspace()

    def _no_header(self, segment: bytes) -> NoReturn:
        text = segment.lstrip(BLANKS)
        line, _ = advance(segment[: len(segment) - len(text)], self.line, self.column)
        shown = LINE_END.split(text, maxsplit=1)[0][:40].decode("ascii", "backslashreplace")
        self.records.fail(
            line,
            f"text before the first '>': {shown!r}",
            "a FASTA file has a line '>name' before each sequence; is this the right file?",
        )
