"""Tensors that many ranks wrote together (torch.distributed.checkpoint), read row by row by any process.

A folder holds one file a rank, ``__0_0.distcp``, and ``.metadata``: what tensors there are, how they are
cut into boxes, and where in which file each box lies. Reading takes no other rank, and no more memory
than what is asked for and one box. A pickle may run code, so of ``.metadata`` nothing but the format's own
classes is accepted; the tensors are read by torch's loader for weights alone.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genoctx.errors import InputError

METADATA = ".metadata"
_AGAIN = "copy the whole checkpoint folder again, or take another checkpoint"
_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.checkpoint.planner",
)
_NAMES = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath")}
_DTYPES = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}


def _member(owner: Any, name: str) -> Enum:
    """What ``getattr`` is needed for: Python 3.11.0 to 3.11.3 write a member of an enumeration with it."""
    if not (isinstance(owner, type) and issubclass(owner, Enum)):
        raise pickle.UnpicklingError(f"an attribute of {owner!r} has no place in it")
    return owner.__members__[name]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        known = module in _MODULES and name.lstrip("_")[:1].isupper() and "." not in name
        if not known and (module, name) not in _NAMES and not (module == "torch" and name in _DTYPES):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return super().find_class(module, name)


class Shards:
    """The tensors of a folder by key. Opening reads what there is, and no tensor."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError where ``.metadata`` cannot be read; broken files are in ``faults``."""
        self.folder = folder
        path = folder / METADATA
        try:
            with path.open("rb") as file:
                found = _Reader(file).load()
            self._tensors: dict[str, Any] = found.state_dict_metadata
            self._places: dict[Any, Any] = found.storage_data
            self._by_key: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
            for index, place in self._places.items():
                self._by_key[index.fqn].append((index, place))
            self.files = self._lengths()
        except (
            OSError,
            pickle.UnpicklingError,
            EOFError,
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            ImportError,
        ) as error:
            raise InputError(f"cannot read {path}: {error}", _AGAIN) from error
        self.faults = self._faults()
        """What is wrong, by file."""
        self._last: tuple[Any, Tensor] | None = None

    def _lengths(self) -> dict[str, int]:
        """How many bytes each file must have."""
        ends: dict[str, int] = defaultdict(int)
        for place in self._places.values():
            if Path(place.relative_path).name != place.relative_path:
                raise ValueError(f"it names {place.relative_path!r}, which is no file beside it")
            ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
        return dict(ends)

    def _faults(self) -> dict[str, str]:
        faults = {}
        for name, length in self.files.items():
            path = self.folder / name
            if not path.is_file():
                faults[name] = f"{path} is missing"
            elif (size := path.stat().st_size) < length:
                faults[name] = f"{path} is truncated: {size:,} of {length:,} bytes"
        return faults

    def refuse_faults(self) -> None:
        """InputError that names every file that is missing or too short."""
        if self.faults:
            raise InputError("; ".join(self.faults[name] for name in sorted(self.faults)), _AGAIN)

    @property
    def keys(self) -> set[str]:
        return set(self._tensors)

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._tensors[key].size)

    def dtype(self, key: str) -> torch.dtype:
        found: torch.dtype = self._tensors[key].properties.dtype
        return found

    def files_of(self, key: str) -> set[str]:
        """Names of the files that a tensor lies in."""
        return {place.relative_path for index, place in self._boxes(key)}

    def place(self, key: str, row: int = 0) -> tuple[str, int]:
        """File and byte where the box with a row of a tensor lies: to read in an order that goes forward."""
        boxes = self._boxes(key)
        found = [place for box, place in boxes if not box.offsets or box.offsets[0] <= row] or [boxes[0][1]]
        return found[-1].relative_path, found[-1].offset

    def forget(self) -> None:
        """Let go of what is kept for the next read."""
        self._last = None

    def _boxes(self, key: str) -> list[tuple[Any, Any]]:
        """(box, place) of a tensor."""
        boxes = self._tensors[key].chunks
        by_offset = {tuple(box.offsets): box for box in boxes}
        found = [(by_offset[tuple(index.offset or ())], place) for index, place in self._by_key.get(key, ())]
        return sorted(found, key=lambda pair: tuple(pair[0].offsets))

    def read(self, key: str, first: int = 0, last: int | None = None) -> Tensor:
        """Rows ``first``..``last`` - 1 of a tensor (all of it by default), as they are stored.

        Raises InputError, naming the file, where they cannot be read.
        """
        shape = self.shape(key)
        if not shape:
            return self._box(key, *self._boxes(key)[0])
        last = shape[0] if last is None else last
        out = torch.empty(last - first, *shape[1:], dtype=self.dtype(key))
        left = out.numel()
        for box, place in self._boxes(key):
            begin, end = max(first, box.offsets[0]), min(last, box.offsets[0] + box.sizes[0])
            if begin >= end:
                continue
            rest = tuple(slice(o, o + n) for o, n in zip(box.offsets[1:], box.sizes[1:], strict=True))
            target = out[(slice(begin - first, end - first), *rest)]
            target.copy_(self._box(key, box, place)[begin - box.offsets[0] : end - box.offsets[0]])
            left -= target.numel()
        if left:
            raise InputError(f"{self.folder / METADATA} lacks rows of {key}", _AGAIN)
        return out

    def _box(self, key: str, box: Any, place: Any) -> Tensor:
        """One box; the last one is kept, because the experts in it are asked for one by one."""
        index = (place.relative_path, place.offset)
        if self._last is not None and self._last[0] == index:
            return self._last[1]
        path = self.folder / place.relative_path
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                raw = io.BytesIO(file.read(place.length))
            tensor = torch.load(raw, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise InputError(f"{path} is damaged where it holds {key}: {error}", _AGAIN) from error
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != tuple(box.sizes):
            raise InputError(f"{path} holds something else in the place of {key}", _AGAIN)
        self._last = index, tensor
        return tensor
