"""Safetensors files of a checkpoint directory: headers first, then one tensor at a time.

Tensors are read, not mapped: no more of a file is ever in memory than was asked for, and a file that
shrinks gives an error, not a signal.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from genoctx.errors import InputError
from genoctx.model.hub_header import DTYPES, SINGLE_FILE, Stored, read_header, read_index

PIECE = 16 << 20


class WeightFiles(ABC):
    """The weights of a checkpoint directory, by the hub's names. A context manager."""

    directory: Path
    tensors: dict[str, Stored]
    lost: dict[str, str]
    """Tensors that should be there, but cannot be read: name -> file."""
    faults: dict[str, list[str]]
    """What is wrong, by file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of files and of what was kept of them."""

    @property
    def names(self) -> set[str]:
        """All names, those of tensors that cannot be read included."""
        return self.tensors.keys() | self.lost.keys()

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A tensor as it is stored; InputError, naming the file, where that is damaged."""

    @abstractmethod
    def rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows ``first``..``last`` - 1 of a tensor as it is stored."""

    @abstractmethod
    def pieces(self, name: str, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """Bytes ``first`` to ``last`` of a tensor, a few MiB at a time, each valid until the next."""


class HubFiles(WeightFiles):
    """The tensors of a checkpoint directory by stored name. Close it, or use it in a ``with``.

    Opening reads headers only, and raises InputError just where there is nothing to read. Whatever is wrong
    with a file is noted in ``faults``, for a caller to report together with all the rest.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tensors = {}
        self.lost = {}
        self.faults = defaultdict(list)
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()
        index = read_index(directory)
        for file in sorted(set(index.values())) or [SINGLE_FILE]:
            self._add(file)
        if index:
            self._compare(index)

    def close(self) -> None:
        self._stack.close()

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, in memory of exactly its size."""
        stored = self.tensors[name]
        return self._at(stored, 0, stored.shape)

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows ``first``..``last`` - 1 of a tensor as it is stored."""
        stored = self.tensors[name]
        row = stored.size // max(1, stored.shape[0])
        return self._at(stored, first * row, (last - first, *stored.shape[1:]))

    def _at(self, stored: Stored, begin: int, shape: tuple[int, ...]) -> Tensor:
        found = torch.empty(shape, dtype=DTYPES[stored.dtype])
        if found.numel():
            self._fill(stored, begin, memoryview(found.flatten().view(torch.uint8).numpy().data))
        return found

    def pieces(self, name: str, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """Bytes ``first`` to ``last`` of a tensor, a few MiB at a time.

        Each piece is valid until the next is asked for.
        """
        stored = self.tensors[name]
        end = stored.size if last is None else last
        buffer = memoryview(bytearray(min(PIECE, end - first)))
        for at in range(first, end, PIECE):
            part = buffer[: min(PIECE, end - at)]
            self._fill(stored, at, part)
            yield part

    def _fill(self, stored: Stored, at: int, buffer: memoryview) -> None:
        file, done = self._open[stored.file], 0
        file.seek(stored.start + at)
        while done < len(buffer):  # one call moves 2 GiB at most
            got = file.readinto(buffer[done:])
            if not got:
                raise InputError(
                    f"{self.directory / stored.file} ends inside {stored.name}",
                    "it has changed since it was opened; fetch it again",
                )
            done += got

    # headers

    def _fault(self, file: str, text: str) -> None:
        self.faults[file].append(f"{self.directory / file} {text}")

    def _add(self, file: str) -> None:
        try:
            handle = self._stack.enter_context((self.directory / file).open("rb", buffering=0))
            length = os.fstat(handle.fileno()).st_size
            found, begin, faults = read_header(handle, file, length)
        except FileNotFoundError:
            self._fault(file, "is missing")
        except OSError as error:
            self._fault(file, f"cannot be read: {error.strerror}")
        except ValueError as error:
            self._fault(file, str(error))
        else:
            self._open[file] = handle
            for text in faults:
                self._fault(file, text)
            self._place(file, found, begin, length)

    def _place(self, file: str, found: Sequence[Stored], begin: int, length: int) -> None:
        """Take over the tensors that lie inside their file, each at a place of its own."""
        end, cut = begin, 0
        for stored in sorted(found, key=lambda s: (s.start, s.size)):
            if stored.start != end:
                self._fault(file, f"has {stored.name} begin elsewhere than where the tensor before it ends")
            end = max(end, stored.start + stored.size)
            if stored.name in self.tensors:
                self._fault(file, f"holds {stored.name}, and so does {self.tensors[stored.name].file}")
            elif stored.start + stored.size > length:
                self.lost[stored.name] = file
                cut += 1
            else:
                self.tensors[stored.name] = stored
        if end > length:
            lack = f"{length:,} of {end:,} bytes, {cut:,} of {len(found):,} tensors cut"
            self._fault(file, f"is truncated: {lack}")
        elif end < length:
            self._fault(file, f"has {length - end:,} bytes after its last tensor")

    def _compare(self, index: dict[str, str]) -> None:
        """The index against the headers."""
        for name, file in index.items():
            where = self.tensors[name].file if name in self.tensors else self.lost.get(name)
            if where is None:
                self.lost[name] = file
                if file in self._open:
                    self._fault(file, f"does not hold {name}, which the index places there")
            elif where != file:
                self._fault(file, f"does not hold {name}, which the index places there; {where} does")
        for name in self.names - index.keys():
            file = self.tensors[name].file if name in self.tensors else self.lost[name]
            self._fault(file, f"holds {name}, which the index does not list")
