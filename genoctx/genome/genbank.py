"""GenBank flat files: features by Biopython; bases by the code that reads FASTA, so that their memory is flat.

Of each record only the part before its bases is kept as text. Letters are lower case in all of these files,
which means nothing: they are read as upper case.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from genoctx.errors import GenoctxError, InputError
from genoctx.genome.faults import located
from genoctx.genome.genbank_features import features_of
from genoctx.genome.piece import Piece
from genoctx.genome.records import Records
from genoctx.genome.source import Source

if TYPE_CHECKING:
    from Bio.SeqRecord import SeqRecord

_NEXT = re.compile(rb"^(?:ORIGIN|//|LOCUS\b)", re.MULTILINE)
_JOINS = re.compile(rb"^(?:CONTIG|WGS)", re.MULTILINE)
_NUMBERS = b"0123456789"
_FETCH = "download the record again, complete"
_SHOWN = 5


def read_genbank(source: Source, blocks: Iterator[bytes], records: Records) -> Iterator[Piece]:
    """The records of ``source``, whose text is ``blocks``, piece by piece; ``source.features`` gets theirs.

    A contig is called by accession and version, or by what the record has of them, or by its LOCUS name;
    ``line`` of its pieces is that of the LOCUS line. Raises InputError, for a file that is cut short too.
    """
    records.dropped += _NUMBERS
    parser = _GenBank(source, records)
    held = b""
    for block in blocks:
        block = held + block
        # whole lines only; a CR at the very end may be half of a CRLF
        stop = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
        held = block[stop:]
        parser.feed(block[:stop])
        yield from records.take()
    parser.feed(held)
    parser.finish()
    yield from records.finish()
    source.notes.extend(parser.notes())


class _GenBank:
    """Where in the file we are. Fed with whole lines."""

    def __init__(self, source: Source, records: Records) -> None:
        self._source, self._records = source, records
        self._line = 1
        self._begin = 0
        """Line of the LOCUS of the record that is being read; 0 between records."""
        self._header: list[bytes] = []
        """Its text, until the bases begin."""
        self._name = ""
        self._left_out = False
        self._joins = False
        """Whether it says of which other records it is made."""
        self._length = self._missing = 0
        """Bases that its LOCUS line announces, and how many of them are still to come."""
        self._warnings: dict[str, None] = {}
        self._remote = 0

    def feed(self, text: bytes) -> None:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        position = 0
        while position < len(text):
            mark = _NEXT.search(text, position)
            stop = mark.start() if mark else len(text)
            self._text(text[position:stop])
            if mark is None:
                return
            end = text.find(b"\n", stop) + 1 or len(text)
            self._marked(mark[0], text[stop:end])
            position = end

    def finish(self) -> None:
        if self._begin:
            raise self._error(
                f"{self._source.path} is cut short: its last record has no end line '//'", _FETCH
            )

    def notes(self) -> Iterator[str]:
        """What was read over."""
        for text in list(self._warnings)[:_SHOWN]:
            yield f"{self._source.path}: {text}"
        if self._remote:
            yield f"{self._source.path}: parts of features that lie in other records: {self._remote:,}"

    def _text(self, lines: bytes) -> None:
        """Lines without a mark: more of the header, of the bases, or nothing between two records."""
        if self._header:
            self._header.append(lines)
        elif self._begin:
            bases = lines.upper()
            if self._left_out:
                self._missing -= len(bases.translate(None, self._records.dropped))
            else:
                self._missing -= len(bases) - self._records.add(bases, self._line, 0)
        elif not lines.isspace() and lines:
            line = self._line + lines[: len(lines) - len(lines.lstrip())].count(b"\n")
            self._records.fail(line, "text outside of a record", "a record begins with a LOCUS line")
        self._line += lines.count(b"\n")

    def _marked(self, mark: bytes, line: bytes) -> None:
        """A line that begins or ends a part of a record."""
        if mark == b"LOCUS":
            if self._begin:
                raise self._error("the record has no end line '//'", _FETCH)
            self._begin, self._header, self._name = self._line, [line], ""
        elif mark == b"ORIGIN" and self._header:
            self._begin_bases()
        elif mark == b"//" and self._begin:
            self._end_record()
        else:
            self._records.fail(self._line, f"{mark.decode()} outside of a record", "is the file damaged?")
        self._line += line.count(b"\n")

    def _begin_bases(self) -> None:
        record = self._parsed()
        if b" aa " in self._header[0]:
            raise self._error("a protein", "give the nucleotide record of the genome")
        words = (record.id or "").split() or [""]
        word = words[0] if words[0] not in ("", ".", "<unknown") else (record.name or "")
        name = self._records.begin(word.encode(), self._begin)
        self._joins = any(_JOINS.search(lines) for lines in self._header)
        self._header = []
        self._name, self._left_out = name or word, name is None
        self._length = self._missing = len(record)
        if name is not None:
            where = f"{self._source.path}, line {self._begin:,} (contig {name})"
            features, remote = features_of(record.features, name, len(record), where)
            self._source.features.extend(features)
            self._remote += remote

    def _parsed(self) -> SeqRecord:
        """What stands before the bases. Raises InputError."""
        try:
            from Bio import SeqIO
        except ModuleNotFoundError as error:
            raise InputError(
                f"{self._source.path}: reading GenBank files takes Biopython", "pip install biopython"
            ) from error
        text = b"".join(self._header) + b"ORIGIN\n//\n"
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            decoded = text.decode("latin-1")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                record: SeqRecord = SeqIO.read(io.StringIO(decoded), "genbank")
        except Exception as error:  # Biopython documents none; ValueError, AttributeError and more occur
            reason = " ".join(str(error).split())[:200]
            raise self._error(
                f"the record cannot be read: {reason}", "is the file damaged? " + _FETCH
            ) from error
        for warning in caught:
            self._warnings.setdefault(" ".join(str(warning.message).split()))
        return record

    def _end_record(self) -> None:
        if self._header or self._missing == self._length > 0:
            raise self._no_bases()
        if self._missing:
            word = "few" if self._missing > 0 else "many"
            raise self._error(f"{abs(self._missing):,} bases too {word} for its LOCUS line", _FETCH)
        self._begin = 0

    def _no_bases(self) -> GenoctxError:
        if self._joins or any(_JOINS.search(lines) for lines in self._header):
            return self._error(
                "the record has no bases, it only says of which others it is made",
                "download it in full: format 'GenBank (full)', or efetch with rettype=gbwithparts",
            )
        return self._error("the record has no bases", _FETCH)

    def _error(self, what: str, hint: str) -> GenoctxError:
        """The error for the record that is being read, unless a base before it is wrong."""
        self._records.take()
        words = self._header[0].split() if self._header else []
        name = self._name or (words[1].decode("latin-1") if len(words) > 1 else "")
        return located(self._source.path, self._begin, what, hint, name)
