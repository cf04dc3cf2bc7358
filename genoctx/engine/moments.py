"""The optimizer's tensors of a checkpoint, whoever wrote it, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from genoctx.model.shard_files import SHARDS, is_sharded
from genoctx.model.shards import Shards

OPTIMIZER_FILE = "optimizer.safetensors"
OPTIMIZER_KEYS = "optim."
"""How the keys of a sharded checkpoint's optimizer begin: ``optim.NAME.KIND``."""

MASTER = "master"
"""The kind of the float32 weights that a weight of lower precision is rounded from."""

Rows = Callable[[str], tuple[int, int] | None]


def every_row(name: str) -> None:
    """One process needs all of a tensor."""
    del name


class Moments(Mapping[str, Tensor]):
    """``KIND.NAME`` -> tensor, as ``Optimizer.state`` names them. Use it in a ``with``."""

    def __init__(self, directory: Path, rows: Rows = every_row) -> None:
        """``rows``: which rows of a parameter's tensors are read; None for all of them.

        Raises InputError for shards that are missing or broken, OSError or SafetensorError for one file that is.
        """
        self._rows, self._stack = rows, ExitStack()
        self._file: Any = None
        if is_sharded(directory):
            self._shards = Shards(directory / SHARDS)
            self._shards.refuse_faults()
            keys = sorted(key for key in self._shards.keys if key.startswith(OPTIMIZER_KEYS))
            self._keys = {_own(key): key for key in keys}
        else:
            self._file = self._stack.enter_context(safe_open(directory / OPTIMIZER_FILE, framework="pt"))
            self._keys = {key: key for key in self._file.keys()}  # noqa: SIM118

    def __enter__(self) -> Moments:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, key: str) -> Tensor:
        stored, rows = self._keys[key], self._rows(key.partition(".")[2])
        if self._file is None:
            return self._shards.read(stored, *(rows or ()))
        found: Tensor = self._file.get_tensor(stored) if rows is None else self._cut(stored, *rows)
        return found

    def _cut(self, stored: str, first: int, last: int) -> Tensor:
        whole = self._file.get_slice(stored)
        cut: Tensor = whole[first:last] if whole.get_shape() else self._file.get_tensor(stored)
        return cut


def _own(key: str) -> str:
    """``exp_avg.NAME`` of ``optim.NAME.exp_avg``."""
    name, _, kind = key.removeprefix(OPTIMIZER_KEYS).rpartition(".")
    return f"{kind}.{name}"
