"""The weights that ranks wrote in shards, under the hub's names: read like the files of a hub checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from genoctx.model.hub_files import PIECE, HubFiles, WeightFiles
from genoctx.model.hub_header import Stored
from genoctx.model.hub_names import hub_parts
from genoctx.model.hub_write import as_bytes, spelling
from genoctx.model.shards import Shards

SHARDS = "shards"
"""The folder of a checkpoint in which its ranks' files lie."""
WEIGHTS = "model."
"""How the keys of weights begin; what follows is our name of the parameter."""


def is_sharded(directory: Path) -> bool:
    """Whether a checkpoint directory was written by many ranks."""
    return (directory / SHARDS).is_dir()


class ShardFiles(WeightFiles):
    """What ``HubFiles`` is to a hub checkpoint; tensors carry the hub's names, experts one by one."""

    def __init__(self, directory: Path) -> None:
        """Raises InputError where the list of tensors cannot be read; ``faults`` has all else."""
        self.directory = directory
        self.shards = Shards(directory / SHARDS)
        self.tensors = {}
        self.lost = {}
        self.faults = {file: [text] for file, text in self.shards.faults.items()}
        self._views: dict[str, tuple[str, Tensor]] = {}
        for key in sorted(self.shards.keys):
            if key.startswith(WEIGHTS):
                self._add(key)

    def _add(self, key: str) -> None:
        """The tensors of the hub that one of our parameters is made of."""
        shape, dtype = self.shards.shape(key), self.shards.dtype(key)
        whole = torch.empty(shape, dtype=dtype, device="meta")
        broken = sorted(self.shards.files_of(key) & self.shards.faults.keys())
        for name, view in hub_parts(key.removeprefix(WEIGHTS), whole):
            self._views[name] = key, view
            file, start = self.shards.place(key, self._row(view) if view.ndim < len(shape) else 0)
            size = view.numel() * view.itemsize
            if broken:
                self.lost[name] = broken[0]
            else:
                self.tensors[name] = Stored(name, file, spelling(dtype), tuple(view.shape), start, size)

    def _row(self, view: Tensor) -> int:
        """The number of the expert that a view belongs to."""
        assert view._base is not None
        return int(view.storage_offset()) // view._base.stride(0)

    def close(self) -> None:
        self.shards.forget()

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored; InputError, naming the file, where that is damaged."""
        key, view = self._views[name]
        if view.ndim == len(self.shards.shape(key)):
            return self.shards.read(key)
        row = self._row(view)
        expert = self.shards.read(key, row, row + 1).flatten()
        begin = int(view.storage_offset()) % expert.numel()
        return expert[begin : begin + view.numel()].view(view.shape)

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows ``first``..``last`` - 1 of a tensor that is no expert's."""
        return self.shards.read(self._views[name][0], first, last)

    def pieces(self, name: str, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """Bytes ``first`` to ``last`` of a tensor, a few MiB at a time."""
        raw = as_bytes(self.read(name))[first:last]
        for at in range(0, len(raw), PIECE):
            yield raw[at : at + PIECE]


def open_files(directory: Path) -> WeightFiles:
    """The weights of a checkpoint directory, whoever wrote them."""
    return ShardFiles(directory) if is_sharded(directory) else HubFiles(directory)
