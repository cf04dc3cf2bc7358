"""The bytes of one input: plain, gzip (any number of members), bgzip, or standard input."""

from __future__ import annotations

import hashlib
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from genoctx.errors import InputError
from genoctx.genome.formats import BOM, GZIP_MAGIC, is_bgzip, is_genbank, refuse_other_formats

if TYPE_CHECKING:
    from genoctx.genome.genbank_features import Feature

BLOCK = 1 << 19
"""Bytes of text handled at a time: all that is ever held of a file. Its letters, codes and masks together
then stay in the second-level cache; twice as much reads a quarter slower."""

_RAW_BLOCK = 128 << 10  # of compressed data, about BLOCK of text; zlib copies the rest at every member end

_HEAD = 64  # bytes of text by which a format is told
_MEMBER_HEAD = 18  # bytes of a gzip member that bgzip's extra field ends in

STDIN = "-"


class Source:
    """One input file. ``blocks()`` streams its text once; the other attributes are final after that."""

    def __init__(self, path: str | Path, progress: Callable[[int], None] | None = None) -> None:
        self.path = str(path)
        """As the user wrote it, for messages."""
        self.name = "stdin" if self.path == STDIN else Path(path).name
        self.format = "plain"
        """``plain``, ``gzip`` or ``bgzip``, decided by content."""
        self.genbank = False
        """Whether the text is GenBank and not FASTA; known with the first block."""
        self.bytes = 0
        """File bytes read so far."""
        self.notes: list[str] = []
        """Oddities that were read over, for the user to know."""
        self.features: list[Feature] = []
        """Features of the GenBank records that were read; empty for FASTA."""
        self._progress = progress
        self._sha = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hex digest of the file bytes read so far."""
        return self._sha.hexdigest()

    def blocks(self, refuse: Callable[[bytes, str], None] = refuse_other_formats) -> Iterator[bytes]:
        """The text in order, decompressed, without a byte order mark, in non-empty blocks of about 512 KiB.

        ``refuse`` is called with the first bytes (none: the file is empty) and the path, and raises
        InputError for what is not wanted; the default wants a sequence. Raises InputError for a file that
        cannot be read, is empty, damaged or cut short.
        """
        with self._open() as file:
            yield from self._text(file, refuse)

    def _open(self) -> AbstractContextManager[BinaryIO]:
        if self.path == STDIN:
            if sys.stdin.isatty():
                raise InputError(
                    "nothing is piped into standard input", "zcat genome.fa.gz | genoctx ingest -"
                )
            return nullcontext(sys.stdin.buffer)
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise InputError(f"cannot open {self.path}: {error.strerror}", "check the path") from error

    def _text(self, file: BinaryIO, refuse: Callable[[bytes, str], None]) -> Iterator[bytes]:
        head = self._read(file, _RAW_BLOCK)
        if not head:
            refuse(b"", self.path)
            raise InputError(f"{self.path} is empty", "give a FASTA file with at least one sequence")
        if head.startswith(GZIP_MAGIC):
            self.format = "bgzip" if is_bgzip(head) else "gzip"
            text = join_small(self._inflate(file, head))
        else:
            text = self._plain(file, head)
        start: list[bytes] = []
        while sum(map(len, start)) < _HEAD and (block := next(text, b"")):
            start.append(block)
        if not start:
            raise InputError(
                f"{self.path} holds nothing but an empty gzip member", "compress the FASTA again"
            )
        yield from self._judged(start, refuse)
        yield from text

    def _judged(self, blocks: list[bytes], refuse: Callable[[bytes, str], None]) -> Iterator[bytes]:
        head = b"".join(blocks)
        refuse(head, self.path)
        self.genbank = is_genbank(head)
        skipped = 0
        if head.startswith(BOM):
            self.notes.append(f"{self.path}: a UTF-8 byte order mark was skipped")
            skipped = len(BOM)
        for block in blocks:
            if len(block) > skipped:
                yield block[skipped:]
            skipped = max(0, skipped - len(block))

    def _read(self, file: BinaryIO, size: int) -> bytes:
        try:
            data = file.read(size)
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}", "check the disk") from error
        self.bytes += len(data)
        self._sha.update(data)
        if data and self._progress is not None:
            self._progress(len(data))
        return data

    def _plain(self, file: BinaryIO, head: bytes) -> Iterator[bytes]:
        while head:
            yield head
            head = self._read(file, BLOCK)

    def _inflate(self, file: BinaryIO, data: bytes) -> Iterator[bytes]:
        """Every gzip member in turn; CRC and length of each are checked by zlib."""
        member = None
        bgzip, size = False, 0
        while data:
            if member is None:
                data = self._member_head(file, data)
                if data:
                    member, bgzip, size = self._next_member(data), is_bgzip(data), 0
            if member is not None:
                try:
                    text = member.decompress(data, BLOCK)
                except zlib.error as error:
                    raise self._damaged(str(error)) from error
                size += len(text)
                if text:
                    yield text
                data = member.unused_data if member.eof else member.unconsumed_tail
                if member.eof:
                    member = None
            data = data or self._read(file, _RAW_BLOCK)
        if member is not None:
            raise self._cut_short("the gzip data end in the middle")
        if bgzip and size:
            raise self._cut_short("the end marker of bgzip is missing")

    def _member_head(self, file: BinaryIO, data: bytes) -> bytes:
        """``data`` with enough behind it to tell what kind of member begins there."""
        data = data.lstrip(b"\0")  # padding that tapes and block copies leave behind
        while len(data) < _MEMBER_HEAD and (more := self._read(file, _RAW_BLOCK)):
            data = (data + more).lstrip(b"\0")
        return data

    def _next_member(self, data: bytes) -> zlib._Decompress:
        if data[0] != GZIP_MAGIC[0]:
            raise self._damaged("other bytes follow the gzip data")
        return zlib.decompressobj(wbits=31)

    def _damaged(self, why: str) -> InputError:
        return InputError(
            f"{self.path}: damaged gzip data near byte {self.bytes:,}: {why}",
            f"check it with `gzip -t {shlex.quote(self.path)}` and fetch it again",
        )

    def _cut_short(self, why: str) -> InputError:
        return InputError(
            f"{self.path} is cut short: {why}",
            f"fetch it again; if it is whole, try `gzip -dc {shlex.quote(self.path)} | genoctx ingest -`",
        )


def join_small(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of at least half a ``BLOCK`` (but the last): a bgzip member holds only 64 KiB."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BLOCK // 2:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
