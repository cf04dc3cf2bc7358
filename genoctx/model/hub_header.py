"""What a safetensors file and a checkpoint's index say about the tensors, before any is read.

A file is 8 bytes (little-endian length of the header), the header (JSON: name -> dtype, shape and place),
and the numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from genoctx.errors import InputError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LARGEST_HEADER = 100_000_000  # the format's own bound


@dataclass(frozen=True)
class Stored:
    """Where one tensor lies."""

    name: str
    file: str
    dtype: str
    """As safetensors spells it: ``BF16``."""
    shape: tuple[int, ...]
    start: int
    """Its first byte in the file."""
    size: int
    """Bytes."""


def read_header(handle: BinaryIO, file: str, length: int) -> tuple[list[Stored], int, list[str]]:
    """The tensors a file of ``length`` bytes lists, where their numbers begin, and entries that are none.

    Raises ValueError with what is wrong where the header cannot be read.
    """
    size = int.from_bytes(handle.read(8), "little")
    if length < 8 or size > min(_LARGEST_HEADER, length - 8):
        raise ValueError(f"is truncated or not safetensors: {length:,} bytes do not hold its header")
    try:
        header = json.loads(handle.read(size))
        header.pop("__metadata__", None)
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError("is not safetensors: its header is not a JSON object") from error
    found, faults = [], []
    for name, raw in header.items():
        try:
            found.append(_entry(name, file, raw, 8 + size))
        except (KeyError, TypeError, ValueError) as error:
            faults.append(f"lists {name}, but not as a tensor: {error}")
    return found, 8 + size, faults


def _entry(name: str, file: str, raw: Any, begin: int) -> Stored:
    (first, last), shape = raw["data_offsets"], tuple(int(n) for n in raw["shape"])
    stored = Stored(name, file, str(raw["dtype"]), shape, begin + int(first), int(last) - int(first))
    kind = DTYPES.get(stored.dtype)
    if int(first) < 0 or stored.size < 0 or min(shape, default=0) < 0:
        raise ValueError("a negative size")
    if kind is not None and stored.size != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{stored.size:,} bytes for {stored.dtype} {list(shape)}")
    return stored


def read_index(directory: Path) -> dict[str, str]:
    """The index's map of names to files; empty for a checkpoint of one file.

    Raises InputError where there are no weights, two sets of them, or an index nobody can read.
    """
    index, single = directory / INDEX_FILE, directory / SINGLE_FILE
    if not index.exists():
        if not single.exists():
            raise InputError(
                f"no weights in {directory}", f"expected {SINGLE_FILE} or {INDEX_FILE} beside config.json"
            )
        return {}
    if single.exists():
        raise InputError(
            f"{directory} holds both {SINGLE_FILE} and {INDEX_FILE}", "move the one that is not meant away"
        )
    try:
        found = json.loads(index.read_text())["weight_map"]
        places = {str(name): str(file) for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"cannot read {index}: {error!r}", "fetch it again") from error
    if outside := [file for file in places.values() if Path(file).name != file or not file]:
        raise InputError(f"{index} names {outside[0]!r}, which is no file beside it", "fetch it again")
    if not places:
        raise InputError(f"{index} lists no tensors", "fetch it again")
    return places
