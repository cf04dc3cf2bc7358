"""Writes safetensors files in the hub layout, tensor by tensor: no more than one is in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from genoctx.model.hub_header import DTYPES, INDEX_FILE, SINGLE_FILE

SHARD_BYTES = 5 * 10**9
"""Largest file, unless one tensor alone is larger."""

_PIECE_BYTES = 64 << 20
"""Of a tensor that comes from another device, at a time."""

Piece = bytes | memoryview
OnBytes = Callable[[int], None]
_SPELLINGS = {kind: text for text, kind in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor to write: its form, and where its bytes will come from when its turn is there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    """Bytes."""
    pieces: Callable[[], Iterable[Piece]]


def spelling(dtype: torch.dtype) -> str:
    """``BF16`` of ``torch.bfloat16``."""
    return _SPELLINGS[dtype]


def as_bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor in row order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def held(name: str, tensor: Tensor) -> Entry:
    """An entry of a tensor that is in memory anyway, whatever memory that is; written without a second copy."""

    def pieces() -> Iterator[Piece]:
        if tensor.numel():  # nothing cannot be seen as bytes
            yield from map(as_bytes, tensor.detach().reshape(-1).split(_PIECE_BYTES // tensor.itemsize))

    return Entry(name, spelling(tensor.dtype), tuple(tensor.shape), tensor.nbytes, pieces)


def write_shards(
    directory: Path,
    entries: Iterable[Entry],
    *,
    shard_bytes: int = SHARD_BYTES,
    on_bytes: OnBytes = lambda n: None,
) -> list[str]:
    """Write ``entries`` in their order into files of at most ``shard_bytes``; returns the files' names.

    One file needs no index. Not atomic: the caller writes into a folder of its own and renames it.
    """
    shards = _divide(entries, shard_bytes)
    if len(shards) == 1:
        names = [SINGLE_FILE]
    else:
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        with (directory / name).open("wb") as file:
            write_file(file, shard, {"format": "pt"}, on_bytes)
    if len(shards) > 1:
        places = {e.name: name for name, shard in zip(names, shards, strict=True) for e in shard}
        total = sum(e.size for shard in shards for e in shard)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / INDEX_FILE).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return names


def _divide(entries: Iterable[Entry], shard_bytes: int) -> list[list[Entry]]:
    shards: list[list[Entry]] = [[]]
    held = 0
    for entry in entries:
        if shards[-1] and held + entry.size > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(entry)
        held += entry.size
    return shards


def write_file(
    file: BinaryIO, entries: Iterable[Entry], metadata: Mapping[str, str], on_bytes: OnBytes = lambda n: None
) -> None:
    """One safetensors file of ``entries``, with ``metadata`` in its header. OSError when the disk refuses."""
    # readers view the numbers in place, so the widest come first and every one is aligned
    entries = sorted(entries, key=_width, reverse=True)
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for entry in entries:
        places = [end, end + entry.size]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": places}
        end += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for entry in entries:
        written = 0
        for piece in entry.pieces():
            written += file.write(piece)
            on_bytes(len(piece))
        assert written == entry.size, f"{entry.name}: {written} bytes where {entry.size} were announced"


def _width(entry: Entry) -> int:
    kind = DTYPES.get(entry.dtype)
    return kind.itemsize if kind is not None else 0
