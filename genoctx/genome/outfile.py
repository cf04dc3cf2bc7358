"""Output files of a store in the making: errors name the file, bits are packed as they come."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

_STRETCH = 16 << 20
"""Bytes after which a durable file is sent to the disk."""


class OutFile:
    """A new file that grows at its end. A context manager."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        """``durable``: ``finish`` waits until all is on the disk, and little of it stays in memory."""
        self._path = path
        self._file = path.open("wb", buffering=0)  # what is written is large
        self._durable = durable
        self._size = self._sent = 0
        self._writeback: _Writeback | None = None

    def __enter__(self) -> OutFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writeback is not None:
            self._writeback.stop()
        self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``. OSError names the file."""
        rest = memoryview(data)
        self._size += len(rest)
        with self._named():
            while rest:
                rest = rest[self._file.write(rest) :]
            if self._durable and self._size - self._sent >= _STRETCH:
                self._sent = self._size
                if self._writeback is None:
                    self._writeback = _Writeback(self._file.fileno())
                self._writeback.send(self._size)

    def finish(self) -> None:
        """Nothing more comes."""
        with self._named():
            if self._writeback is not None:
                self._writeback.stop()
                self._writeback.check()
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise


class _Writeback:
    """A thread that waits for the disk while the others compute.

    What is on the disk leaves the page cache: a large genome would push out everything else there, and
    where fresh memory is dear (a virtual machine gets it page by page from its host) writing took half of
    the time of an ingest.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0
        self._stopped = False
        self._error: OSError | None = None
        self._event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, size: int) -> None:
        """The file has ``size`` bytes now. Raises the OSError of what was sent before."""
        self.check()
        self._size = size
        self._event.set()

    def check(self) -> None:
        """Raise the OSError of what was sent before, if there was one."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._event.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped:
                size = self._size
                if size:
                    os.fdatasync(self._file)
                    os.posix_fadvise(self._file, 0, size, os.POSIX_FADV_DONTNEED)
                self._event.wait()
                self._event.clear()
        except OSError as error:
            self._error = error


class BitFile:
    """Bools as bits in ``file``, most significant first, the last byte filled with zeros."""

    def __init__(self, file: OutFile) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self._rest = np.zeros(0, dtype=bool)
        """Up to seven bits that do not fill a byte yet."""

    def write(self, flags: np.ndarray) -> None:
        """Append ``flags``, bool."""
        if self._rest.size:
            flags = np.concatenate([self._rest, flags])
        whole = flags.size - flags.size % 8
        self._write(np.packbits(flags[:whole]))
        self._rest = flags[whole:].copy()

    def finish(self) -> str:
        """Write the last bits; returns the sha256 of the whole file, hex."""
        self._write(np.packbits(self._rest))
        return self._sha.hexdigest()

    def _write(self, packed: np.ndarray) -> None:
        self._file.write(packed.data)
        self._sha.update(packed.data)
