"""Output files of a store in the making: errors name the file, bits are packed as they come."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np


class OutFile:
    """A new file that grows at its end. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)  # what is written is large

    def __enter__(self) -> OutFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``. OSError names the file."""
        rest = memoryview(data)
        with self._named():
            while rest:
                rest = rest[self._file.write(rest) :]

    def finish(self, durable: bool) -> None:
        """Nothing more comes; ``durable`` waits until the file is on the disk."""
        with self._named():
            if durable:
                os.fsync(self._file.fileno())
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise


class BitFile:
    """Bools as bits in ``file``, most significant first, the last byte filled with zeros."""

    def __init__(self, file: OutFile) -> None:
        self.file = file
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
        self.file.write(packed.data)
        self._sha.update(packed.data)
