"""One rank of the cases of test_sharded_checkpoint.py: ``checkpoint_worker.py FOLDER RANK WORLD CASE...``.

A case is ``WORK:NAME:CP:EP:KEEP:DTYPE``. What the ranks hold together, or what each of them was told, is
written to ``NAME.WORK.WORLD.pt`` in FOLDER.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.checkpoint import LoopState
from genoctx.engine.mesh import Layout, Mesh
from genoctx.engine.optimizer import AdamWSettings
from genoctx.engine.sharded import ShardedEngine, ShardedOptimizer
from genoctx.engine.sharded_checkpoint import CheckpointWriter, read_sharded, read_sharded_moments
from genoctx.engine.sharded_model import sharded_model
from genoctx.engine.sharding import Sharded, shard, whole_tensor
from genoctx.errors import GenoctxError
from genoctx.model.adapter import Lora
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora import add_adapters, choose_trainable

CONFIG = replace(preset_model("micro"), n_routed_experts=6, num_experts_per_tok=2)
"""Six experts: neither two copies of three nor four ranks share them evenly."""
SEED = 3
SETTINGS = AdamWSettings(clip_norm=0.05)
TARGETS = ("self_attn", "mlp.gate", "experts")


def window(rank: int) -> Batch:
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, 4, (1, 40), generator=generator)
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    return Batch(tokens, targets, (f"chr{rank}:1-40",))


def with_adapters(base: Path | None) -> Callable[[Hybrid], None]:
    """Adapters, and one of the weights, are trained."""

    def choose(model: Hybrid) -> None:
        add_adapters(model, Lora(2, 3.0, TARGETS, base), SEED)
        choose_trainable(model, ("lm_head",), ())

    return choose


@dataclass
class Case:
    """One line of work, and what every kind of it starts from."""

    folder: Path
    work: str
    name: str
    cp: int
    ep: int
    keep: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, folder: Path, text: str) -> Case:
        work, name, cp, ep, keep, dtype = text.split(":")
        return cls(folder, work, name, int(cp), int(ep), keep == "keep", getattr(torch, dtype))

    def made(self, seed: int | None = SEED, init: Path | None = None, adapted: bool = False) -> Sharded:
        layout = Layout.of(dist.get_world_size(), cp=self.cp, ep=self.ep, experts=6)
        more: dict[str, Any] = {"choose": with_adapters(init)} if adapted else {}
        return sharded_model(
            CONFIG, Mesh(layout), dtype=self.dtype, device="cpu", keep=self.keep, seed=seed, init=init, **more
        )

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.name


def step(sharded: Sharded, optimizer: ShardedOptimizer) -> None:
    engine = ShardedEngine(sharded.model, 16, Coefficients(), sharded=sharded)
    engine.train_step([window(sharded.mesh.dp_rank)], optimizer, 1e-2)


def together(sharded: Sharded, optimizer: ShardedOptimizer) -> dict[str, Tensor]:
    """Weights as they are computed with, and the optimizer's tensors, whole."""
    found = {}
    for name, part in sharded.parts():
        whole = whole_tensor(sharded, name).clone()
        found[f"model.{name}"] = whole.to(part.working)
        if part.local.dtype != part.working:
            found[f"master.{name}"] = whole
    for key, value in optimizer.state():
        whole = whole_tensor(sharded, key.partition(".")[2], value) if value.ndim else value
        found[key] = whole.clone()
    return found


def write(folder: Path, sharded: Sharded, optimizer: ShardedOptimizer) -> None:
    """Save, and train on while it is written."""
    if sharded.mesh.first:
        folder.mkdir()
    dist.barrier()
    writer = CheckpointWriter(sharded, optimizer)
    writer.start(folder, LoopState(1, 7))
    step(sharded, optimizer)
    while not writer.poll():
        time.sleep(0.01)
    writer.wait()


def save(case: Case) -> dict[str, Tensor]:
    sharded = case.made()
    optimizer = ShardedOptimizer(sharded, SETTINGS)
    step(sharded, optimizer)
    found = together(sharded, optimizer)
    write(case.checkpoint, sharded, optimizer)
    return found | {f"next.{key}": tensor for key, tensor in together(sharded, optimizer).items()}


def load(case: Case) -> dict[str, Tensor]:
    sharded = case.made(seed=None)
    optimizer = ShardedOptimizer(sharded, SETTINGS)
    assert read_sharded(case.checkpoint, sharded, optimizer) == LoopState(1, 7)
    found = together(sharded, optimizer)
    if dist.get_world_size() == 4:
        return found
    step(sharded, optimizer)
    return found | {f"next.{key}": tensor for key, tensor in together(sharded, optimizer).items()}


def start(case: Case) -> dict[str, Tensor]:
    """Weights and moments of a checkpoint as the beginning of another run."""
    sharded = case.made(init=case.checkpoint)
    optimizer = ShardedOptimizer(sharded, SETTINGS)
    read_sharded_moments(case.checkpoint, sharded, optimizer)
    return together(sharded, optimizer)


def fresh(case: Case) -> dict[str, Tensor]:
    """Drawn part by part, and cut from a model that every rank has: the same."""
    drawn = case.made()
    cut = shard(build(CONFIG, dtype=case.dtype, seed=SEED), drawn.mesh, keep=case.keep)
    for name, part in drawn.parts():
        assert torch.equal(part.local, cut.part(name).local), name
    return together(drawn, ShardedOptimizer(drawn, SETTINGS))


def adapt(case: Case) -> dict[str, Tensor]:
    """Adapters beside the weights of ``base``: drawn, trained, saved, and read again."""
    base = case.folder / "base"
    sharded = case.made(init=base, adapted=True)
    optimizer = ShardedOptimizer(sharded, SETTINGS)
    drawn = {f"fresh.{key}": tensor for key, tensor in together(sharded, optimizer).items()}
    step(sharded, optimizer)
    found = together(sharded, optimizer)
    write(case.checkpoint, sharded, optimizer)
    again = case.made(init=base, adapted=True)
    restored = ShardedOptimizer(again, SETTINGS)
    assert read_sharded(case.checkpoint, again, restored) == LoopState(1, 7)
    back = together(again, restored)
    assert back.keys() == found.keys()
    assert all(torch.equal(back[key], found[key]) for key in found)
    return found | drawn


def told(action: Callable[[], object]) -> list[Any]:
    """What every rank is told: kind, message and hint of its error."""
    try:
        action()
        mine: object = None
    except GenoctxError as error:
        mine = (type(error).__name__, error.message, error.hint)
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, mine)
    return said


def refuse(case: Case) -> dict[str, list[Any]]:
    """Checkpoints that cannot be read or written."""
    sharded = case.made()
    optimizer = ShardedOptimizer(sharded, SETTINGS)
    step(sharded, optimizer)
    found = {}
    for name in ("missing", "truncated", "other"):
        found[name] = told(lambda name=name: read_sharded(case.folder / name, sharded, optimizer))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if sharded.mesh.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    found["full"] = told(lambda: write(case.checkpoint, sharded, optimizer))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()
    if sharded.mesh.first:
        shutil.rmtree(case.checkpoint)
    dist.barrier()
    found["after"] = told(lambda: write(case.checkpoint, sharded, optimizer))
    experts = Layout.of(dist.get_world_size(), ep=2, experts=6)
    mesh = Mesh(experts)
    adapted = lambda: sharded_model(  # noqa: E731
        CONFIG, mesh, dtype=case.dtype, device="cpu", keep=True, seed=0, choose=with_adapters(None)
    )
    found["experts"] = told(adapted)
    return found


WORK: dict[str, Callable[[Case], Any]] = {
    "save": save,
    "load": load,
    "start": start,
    "fresh": fresh,
    "adapt": adapt,
    "refuse": refuse,
}


def main(folder: Path, rank: int, world: int, cases: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / f'meeting-{world}'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=240),
    )
    for text in cases:
        case = Case.of(folder, text)
        found = WORK[case.work](case)
        if rank == 0:
            torch.save(found, folder / f"{case.name}.{case.work}.{world}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
