"""Tensors in one file, written piece by piece and at once visible: safetensors without a second copy.

The library's writer wants every tensor copied out of the slab it is a view of, which doubles the memory
at the worst moment; so ours writes (genoctx/model/hub_write.py), and the library reads, which checks that a
file is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from genoctx.files import sync_folder
from genoctx.model.hub_write import held, write_file


def write_tensors(path: Path, tensors: Iterable[tuple[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``tensors`` and the JSON object ``about``, durably. OSError when the disk refuses."""
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temp.open("wb") as file:
            entries = [held(name, tensor) for name, tensor in tensors]
            write_file(file, entries, {"about": json.dumps(about, allow_nan=False)})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    sync_folder(path.parent)


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
