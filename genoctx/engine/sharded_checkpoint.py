"""Checkpoints of many ranks: each writes its parts, while training goes on (torch.distributed.checkpoint).

A folder holds what a checkpoint of one process holds (genoctx/engine/checkpoint.py), with one difference:
in place of two safetensors files, ``shards/`` has one file a rank. Its keys are ``model.NAME``, a weight as
the model computes with it, and ``optim.NAME.KIND``: the float32 ``master`` of a weight of lower precision,
the moments ``exp_avg`` and ``exp_avg_sq``, and ``step``. Shapes are those of the whole, experts included, so
a folder can be read by any number of ranks in any layout, or by one process.

Adapters are small: they and their moments are gathered by the first rank, into the same files as those of
one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor, Shard

from genoctx.engine.checkpoint import (
    STATE_FILE,
    LoopState,
    cannot_write,
    read_moments,
    read_state,
    reading,
    write_checkpoint,
)
from genoctx.engine.fill import read_weights
from genoctx.engine.mesh import Mesh
from genoctx.engine.moments import MASTER, OPTIMIZER_KEYS, Moments, Rows
from genoctx.engine.sharded import ShardedOptimizer
from genoctx.engine.sharded_adapters import gather, scatter, stand_in
from genoctx.engine.sharding import Part, Sharded
from genoctx.model.hub_config import to_hub
from genoctx.model.hub_fit import CONFIG_FILE
from genoctx.model.lora_file import load_adapters
from genoctx.model.shard_files import SHARDS, WEIGHTS


class CheckpointWriter:
    """Writes one checkpoint at a time in the background. All methods are collective."""

    def __init__(self, sharded: Sharded, optimizer: ShardedOptimizer) -> None:
        self.sharded, self.optimizer = sharded, optimizer
        self._future: Future[Any] | None = None

    @property
    def mesh(self) -> Mesh:
        return self.sharded.mesh

    def start(self, folder: Path, state: LoopState) -> None:
        """Copy everything to host memory and begin to write it into ``folder``, empty and the same for all ranks.

        Training may go on when this returns. ValueError while another one is being written.
        """
        if self._future is not None:
            raise ValueError("a checkpoint is being written: wait for it")
        self._folder, self._state = folder, state
        if self.sharded.model.lora is not None:
            self._future = self._start_adapters()
            return
        staged = dict(_staged(self.sharded, self.optimizer))
        writer = dcp.FileSystemWriter(folder / SHARDS, overwrite=False)
        response = dcp.async_save(
            staged, storage_writer=writer, process_group=self.mesh.files, async_stager=_Staged()
        )
        assert isinstance(response, Future)
        self._future = response

    def _start_adapters(self) -> Future[Any]:
        """The first rank writes what one process would; the others have nothing to do."""
        found = gather(self.sharded, self.optimizer)
        if found is None:
            idle: Future[Any] = Future()
            idle.set_result(None)
            return idle
        thread = ThreadPoolExecutor(1)
        future = thread.submit(write_checkpoint, self._folder, *found, self._state)
        thread.shutdown(wait=False)
        return future

    def poll(self) -> bool:
        """Whether every rank has written its part, or failed: the same answer on every rank. True when idle."""
        return not self.mesh.largest(float(self._future is not None and not self._future.done()))[0]

    def wait(self) -> None:
        """Wait until the folder is complete. Raises the same GenoctxError on every rank when it cannot be."""
        future, self._future = self._future, None
        if future is not None:
            self.mesh.together(lambda: self._finish(future))

    def _finish(self, future: Future[Any]) -> None:
        try:
            future.result()
            if self.mesh.first and self.sharded.model.lora is None:
                config = json.dumps(to_hub(self.sharded.model.config), indent=1)
                (self._folder / CONFIG_FILE).write_text(config + "\n")
                (self._folder / STATE_FILE).write_text(json.dumps(asdict(self._state)) + "\n")
        except CheckpointException as error:
            rank, (fault, _) = min(error.failures.items())
            raise cannot_write(self._folder, self._state, f"rank {rank}: {fault}") from error
        except (OSError, RuntimeError) as error:
            raise cannot_write(self._folder, self._state, str(error)) from error


class _Staged(AsyncStager):
    """For a state that was copied to the host already."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict

    def synchronize_staging(self) -> None:
        return

    def close(self) -> None:
        return


def _staged(sharded: Sharded, optimizer: ShardedOptimizer) -> Iterator[tuple[str, Tensor]]:
    """Host copies of everything a resume needs, by key, each labelled with its place in the whole.

    Weights come in the dtype they are computed in. A rank that has no row of a tensor leaves it out.
    """
    mesh, parts = sharded.mesh, dict(sharded.parts())
    for name, part in parts.items():
        if len(part.local) or not part.shape:
            yield WEIGHTS + name, _labelled(part.local.to(part.working), part, mesh)
            if part.local.dtype != part.working:
                yield f"{OPTIMIZER_KEYS}{name}.{MASTER}", _labelled(part.local, part, mesh)
    for key, value in optimizer.state():
        kind, _, name = key.partition(".")
        part = parts[name]
        if not value.ndim:
            yield f"{OPTIMIZER_KEYS}{name}.{kind}", value.clone()
        elif len(value):
            yield f"{OPTIMIZER_KEYS}{name}.{kind}", _labelled(value, part, mesh)


def _labelled(local: Tensor, part: Part, mesh: Mesh) -> Tensor:
    """A copy on the host; where it is a part, with its place in a tensor of ``part.shape``."""
    copy = local.detach().to("cpu", copy=True)
    if part.replicated:
        return copy
    by_part, cuts = (mesh.experts_by_part, [Shard(0)] * 2) if part.experts else (mesh.all_by_part, [Shard(0)])
    stride = torch.empty(part.shape, device="meta").stride()
    labelled: Tensor = DTensor.from_local(
        copy, by_part, cuts, run_check=False, shape=torch.Size(part.shape), stride=stride
    )
    return labelled


def read_sharded(folder: Path, sharded: Sharded, optimizer: ShardedOptimizer) -> LoopState:
    """Put weights and moments back from a checkpoint of any number of ranks, or of one process.

    With adapters, the weights beside which they stand are there already. Collective; raises InputError, the
    same on every rank, naming the file that is missing or broken.
    """
    return sharded.mesh.together(lambda: _read(folder, sharded, optimizer))


def read_sharded_moments(folder: Path, sharded: Sharded, optimizer: ShardedOptimizer) -> None:
    """As ``read_moments``, each rank its parts. Collective."""
    sharded.mesh.together(lambda: read_moments(folder, optimizer, _rows(sharded)))


def _read(folder: Path, sharded: Sharded, optimizer: ShardedOptimizer) -> LoopState:
    with reading(folder):
        if sharded.model.lora is None:
            read_weights(sharded, folder)
        else:
            made = stand_in(sharded)
            load_adapters(made, folder)
            scatter(sharded, made)
        with Moments(folder, _rows(sharded)) as moments:
            optimizer.load_state(moments)
    return read_state(folder)


def _rows(sharded: Sharded) -> Rows:
    def rows(name: str) -> tuple[int, int] | None:
        part = sharded.part(name)
        return None if part.replicated else (part.first, part.last)

    return rows
