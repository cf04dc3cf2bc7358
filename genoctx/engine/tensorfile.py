"""Tensors in one file, written piece by piece and at once visible: safetensors without a second copy.

The library's writer wants every tensor copied out of the slab it is a view of, which doubles the memory
at the worst moment. The format is a length (8 bytes, little endian), a JSON header and the raw bytes; it
is read with the library itself, which checks that a file is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from torch import Tensor

from genoctx.files import sync_folder

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
}
_PIECE_BYTES = 64 << 20


def write_tensors(path: Path, tensors: Iterable[tuple[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``tensors`` and the JSON object ``about``, durably. OSError when the disk refuses."""
    listed = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about, allow_nan=False)}}
    end = 0
    for name, tensor in listed:
        start, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temp.open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for _, tensor in listed:
                _write(file, tensor)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    sync_folder(path.parent)


def _write(file: IO[bytes], tensor: Tensor) -> None:
    flat = tensor.detach().contiguous().flatten()
    if flat.numel():  # zero elements cannot be seen as bytes
        for piece in flat.view(torch.uint8).split(_PIECE_BYTES):
            file.write(memoryview(piece.cpu().numpy()))


def read_about(path: Path) -> dict[str, Any]:
    """The JSON object beside the tensors. SafetensorError, OSError, ValueError or KeyError where there is none."""
    with safe_open(path, framework="pt") as file:
        found = json.loads(file.metadata()["about"])
    if not isinstance(found, dict):
        raise ValueError(f"{path} has no object beside its tensors")
    return found


def read_tensors(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Every tensor of ``path`` by name, on ``device``."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
