"""Lines of an annotation file, streamed; what it is, is told by its content and never by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from genoctx.errors import InputError
from genoctx.genome.formats import BOM
from genoctx.genome.source import Source

Dialect = Literal["gff3", "gtf", "bed"]

Line = tuple[int, str]
"""Its number, counted from 1, and its text without the line end."""

_LONGEST = 16 << 20

# first bytes of files that are no annotation by lines, what they are, and what to do
_OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b">", "FASTA", "give sequences as FASTA arguments and features with --annotation"),
    (b"LOCUS ", "a GenBank file", "give it in place of the FASTA: its features come with it"),
    (b"ID   ", "an EMBL file", "download the GFF3 of the same record"),
    (b"##fileformat=VCF", "a VCF of variants", "give genes or repeats: GFF3, GTF or BED"),
    (b"\xeb\xf2\x89\x87", "a bigBed file", "bigBedToBed IN.bb OUT.bed"),
    (b"\x87\x89\xf2\xeb", "a bigBed file", "bigBedToBed IN.bb OUT.bed"),
    (b"BAM\x01", "a BAM of aligned reads", "give genes or repeats: GFF3, GTF or BED"),
    (b"SQLite format 3", "a database", "give the GFF3 or GTF it was made from"),
    (b"BZh", "bzip2 data", "bzip2 -d it"),
    (b"\xfd7zXZ\x00", "xz data", "xz -d it"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "zstd -d it"),
    (b"PK\x03\x04", "a zip archive", "unzip it"),
    (b"\x1f\x8b", "gzip data compressed twice", "gzip -d it once"),
    (b"<", "an HTML or XML page", "the download probably failed: fetch it again"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT"),
    (b"version https://git-lfs", "a Git LFS pointer", "run `git lfs pull` to fetch the file it stands for"),
)

_EXPECTED = "GFF3 and GTF have nine columns separated by tabs, BED has at least contig, start, end"
_ASSIGNED = re.compile(r"\s*[^\s;=\"]+=")
_QUOTED = re.compile(r"\s*\w+\s+[\"\w]")
_PEEKED = 1000  # features among which one must show whether attributes are written as in GFF3 or GTF


class AnnotationLines:
    """The lines of a file that are not empty, comments included, and its dialect. Iterate over it once."""

    def __init__(self, source: Source) -> None:
        """Reads up to the first features. Raises InputError for what is no annotation."""
        self.path = source.path
        self._blocks = source.blocks(_refuse)
        self._lines = self._split()
        self._seen: list[Line] = []
        self.dialect = self._recognise()

    def __iter__(self) -> Iterator[Line]:
        yield from self._seen
        yield from self._lines

    def skip_rest(self) -> None:
        """Read to the end of the file, so that its digest is known, without looking at it."""
        for _ in self._blocks:
            continue

    def _split(self) -> Iterator[Line]:
        number, held = 1, b""
        for block in self._blocks:
            block = held + block
            # a CR at the very end may be half of a CRLF
            stop = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
            held = block[stop:]
            if len(held) > _LONGEST:
                raise InputError(f"{self.path}, line {number:,} is longer than 16 MiB", _EXPECTED)
            lines = _decoded(block[:stop]).split("\n")[:-1]
            yield from ((n, line) for n, line in enumerate(lines, number) if line)
            number += len(lines)
        yield from ((n, line) for n, line in enumerate(_decoded(held).split("\n"), number) if line)

    def _recognise(self) -> Dialect:
        bare = False
        features = 0
        for number, line in self._lines:
            self._seen.append((number, line))
            if line.startswith("##gff-version 3"):
                return "gff3"
            if is_feature(line):
                if not _is_gff(line, f"{self.path}, line {number:,}"):
                    return "bed"
                attributes = line.split("\t")[8:] or [""]
                if _ASSIGNED.match(attributes[0]):
                    return "gff3"
                if _QUOTED.match(attributes[0]):
                    return "gtf"
                bare |= attributes[0].strip(" .") != ""  # a name alone, as AUGUSTUS writes for genes
                features += 1
                if features == _PEEKED:
                    break
        if not features:
            raise InputError(f"{self.path} holds no feature", _EXPECTED)
        return "gtf" if bare else "gff3"


def is_feature(line: str) -> bool:
    """Whether ``line`` is neither blank, nor a comment, nor for a genome browser."""
    return not (line.startswith("#") or line.isspace() or line.split(None, 1)[0] in ("track", "browser"))


def is_position(text: str) -> bool:
    """Whether ``text`` is a whole number that can be a place in a chromosome: at most eleven digits."""
    return text.isdigit() and text.isascii() and len(text) < 12


def _decoded(text: bytes) -> str:
    """Text with LF as the only line end. A line that is not UTF-8 is read as Latin-1, as names in FASTA are."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "\n".join(_decoded_line(line) for line in text.split(b"\n"))


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _is_gff(line: str, where: str) -> bool:
    """GFF or GTF, else BED. Raises InputError for neither."""
    tabbed = line.split("\t")
    if len(tabbed) >= 8 and is_position(tabbed[3]) and is_position(tabbed[4]) and not is_position(tabbed[1]):
        return True
    words = line.split()
    columns = tabbed if len(tabbed) >= 3 else words
    if len(columns) >= 3 and is_position(columns[1]) and is_position(columns[2]):
        return False
    if len(words) >= 8 and is_position(words[3]) and is_position(words[4]):
        raise InputError(f"{where}: the columns are separated by blanks, not tabs", _EXPECTED)
    raise InputError(f"{where}: neither GFF3, GTF nor BED: {line[:60]!r}", _EXPECTED)


def _refuse(head: bytes, path: str) -> None:
    if not head:
        raise InputError(f"{path} is empty", _EXPECTED)
    text = head.removeprefix(BOM).lstrip()
    for magic, what, hint in _OTHERS:
        if head.startswith(magic) or text.startswith(magic):
            raise InputError(f"{path} is not an annotation: it looks like {what}", hint)
    if b"\0" in head:
        raise InputError(f"{path} is not an annotation: it holds NUL bytes", _EXPECTED)
