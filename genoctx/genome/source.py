"""The bytes of one input: plain, gzip (any number of members), bgzip, or standard input."""

from __future__ import annotations

import hashlib
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from genoctx.errors import InputError
from genoctx.genome.formats import GZIP_MAGIC, is_bgzip, refuse_other_formats

BLOCK = 1 << 20
"""Bytes of text handled at a time: all that is ever held of a file. Four times as much falls out of the
second-level cache and reads a third slower."""

_RAW_BLOCK = 256 << 10  # of compressed data; small, because zlib copies the rest at every member end

STDIN = "-"


class Source:
    """One input file. ``blocks()`` streams its text once; the other attributes are final after that."""

    def __init__(self, path: str | Path, progress: Callable[[int], None] | None = None) -> None:
        self.path = str(path)
        """As the user wrote it, for messages."""
        self.name = "stdin" if self.path == STDIN else Path(path).name
        self.format = "plain"
        """``plain``, ``gzip`` or ``bgzip``, decided by content."""
        self.bytes = 0
        """File bytes read so far."""
        self.notes: list[str] = []
        """Oddities that were read over, for the user to know."""
        self._progress = progress
        self._sha = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hex digest of the file bytes read so far."""
        return self._sha.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """The text in order, decompressed, in non-empty blocks of about 1 MiB.

        Raises InputError for a file that cannot be read, is empty, damaged, cut short, or not FASTA.
        """
        with self._open() as file:
            yield from self._text(file)

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

    def _text(self, file: BinaryIO) -> Iterator[bytes]:
        head = self._read(file, _RAW_BLOCK)
        if not head:
            raise InputError(f"{self.path} is empty", "give a FASTA file with at least one sequence")
        if head.startswith(GZIP_MAGIC):
            self.format = "bgzip" if is_bgzip(head) else "gzip"
            text = join_small(self._inflate(file, head))
        else:
            text = self._plain(file, head)
        first = next(text, b"")
        if not first:
            raise InputError(
                f"{self.path} holds nothing but an empty gzip member", "compress the FASTA again"
            )
        refuse_other_formats(first, self.path)
        yield first
        yield from text

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
                data = data.lstrip(b"\0")  # padding that tapes and block copies leave behind
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
    """The same bytes in blocks of at least ``BLOCK`` (but the last): a bgzip member holds only 64 KiB."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BLOCK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
