"""One rank of the cases of test_sharding.py: ``sharding_worker.py FOLDER RANK WORLD CASE...``.

Ranks meet through a file in FOLDER. Every case is one optimizer step over windows of unequal length; its
first rank writes what all ranks hold together, and what one process finds, to ``CASE.pt``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from live import Live
from torch import Tensor

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.engine import Engine, StepResult
from genoctx.engine.mesh import Layout, Mesh
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.sharded import ShardedEngine, ShardedOptimizer, idle, rounds
from genoctx.engine.sharded_model import sharded_model
from genoctx.engine.sharding import Sharded, full_tensors, local, shard
from genoctx.model.block import Objectives
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.weights import save_weights

LENGTHS = (66, 40, 66)
"""Three windows for two ranks: a rank is idle, and one round has fewer chunks."""
CHUNK = 33
COEFFICIENTS = Coefficients(balance=0.01, indexer_kl=0.1)
SETTINGS = AdamWSettings(clip_norm=0.05)


def model(dtype: torch.dtype = torch.float64) -> Hybrid:
    config = replace(preset_model("micro"), n_routed_experts=4, num_experts_per_tok=2)
    return build(config, dtype=dtype, objectives=Objectives(balance=True, kl_mode="sparse"), seed=0)


def window(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    tokens = torch.randint(0, 4, (1, LENGTHS[index]), generator=generator)
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    targets[:, : 7 * index] = -100  # windows with different numbers of targets
    return Batch(tokens, targets, (f"chr{index}:1-{LENGTHS[index]}",))


def copies(pairs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in pairs.items()}


def one_process(dtype: torch.dtype) -> dict[str, object]:
    whole = model(dtype)
    optimizer, gradients = Optimizer(whole, SETTINGS), {}
    step = optimizer.step

    def spied(rate: float, norm: float) -> None:
        gradients.update(copies(dict(optimizer.gradients())))
        step(rate, norm)

    optimizer.step = spied  # type: ignore[method-assign]
    result = Engine(whole, CHUNK, COEFFICIENTS).train_step([window(i) for i in range(3)], optimizer, 1e-2)
    return _found(result, gradients, copies(dict(whole.named_parameters())))


def _found(result: StepResult, gradients: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, object]:
    return {"losses": result.losses, "norm": result.grad_norm, "gradients": gradients, "weights": weights}


def whole(sharded: Sharded, parts: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Every parameter as one process has it; or other tensors that are cut as the parameters are."""
    found: dict[str, Tensor] = {}
    every = {**sharded.parameters, **sharded.replicated}
    before = {n: local(p).clone() for n, p in every.items()}
    for name, p in every.items():
        if parts is not None:
            local(p).copy_(parts.get(name, torch.zeros_like(local(p))))
    full_tensors(sharded, lambda name, tensor: found.update({name: tensor.clone()}))
    for name, p in every.items():
        local(p).copy_(before[name])
    return found


class Gathers:
    """Counts the collective by which FSDP2 gathers weights."""

    def __enter__(self) -> Gathers:
        self.calls = self.inside = 0
        self.original = dist.all_gather_single

        def counted(*given: object, **named: object) -> object:
            self.calls += 1
            return self.original(*given, **named)

        dist.all_gather_single = counted
        return self

    def __exit__(self, *_: object) -> None:
        dist.all_gather_single = self.original


def many(case: str, chunk: int = CHUNK) -> tuple[dict[str, object], int]:
    """What the ranks of a case hold together after one step, and how many weight gathers it took."""
    kind, cp, ep, dtype = case.split("-")
    mesh = Mesh(Layout.of(dist.get_world_size(), cp=int(cp), ep=int(ep), experts=4))
    sharded = shard(model(getattr(torch, dtype)), mesh, keep=kind == "keep")
    optimizer, gradients = ShardedOptimizer(sharded, SETTINGS), {}
    step = optimizer.step

    def spied(rate: float, norm: float) -> None:
        gathers.inside = gathers.calls
        gradients.update(whole(sharded, dict(optimizer.gradients())))
        step(rate, norm)

    optimizer.step = spied  # type: ignore[method-assign]
    mine = []
    for chunks, taken in rounds(LENGTHS, mesh.layout.dp, chunk):
        index = taken[mesh.dp_rank]
        mine.append(idle(chunks, mesh.layout.cp) if index is None else window(index))
    engine = ShardedEngine(sharded.model, chunk, COEFFICIENTS, sharded=sharded)
    with Gathers() as gathers:
        result = engine.train_step(mine, optimizer, 1e-2)
    return _found(result, gradients, whole(sharded)), gathers.inside


def made(case: str, folder: Path) -> dict[str, dict[str, int]]:
    """Bytes of this rank while it draws and while it reads a model: its parts, the largest tensor, the peak."""
    _, cp, ep, dtype = case.split("-")
    mesh = Mesh(Layout.of(dist.get_world_size(), cp=int(cp), ep=int(ep), experts=4))
    whole, saved, found = model(getattr(torch, dtype)), folder / case, {}
    if mesh.rank == 0:
        saved.mkdir()
        save_weights(whole, saved)
    dist.barrier()
    sizes = [p.nbytes for p in whole.parameters()]
    for source, init in (("seed", None), ("file", saved)):
        with Live() as live:
            sharded = sharded_model(
                whole.config, mesh, dtype=getattr(torch, dtype), device="cpu", keep=True, seed=0, init=init
            )
        parts = sum(part.local.nbytes for _, part in sharded.parts())
        found[source] = {"parts": parts, "largest": max(sizes), "all": sum(sizes), "peak": live.peak}
    return found


def main(folder: Path, rank: int, world: int, cases: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=240),
    )
    for case in cases:
        if case.startswith("made"):
            every: list[object] = [None] * world
            dist.all_gather_object(every, made(case, folder))
            if rank == 0:
                torch.save(every, folder / f"{case}.pt")
            continue
        found, gathers = many(case)
        finer = many(case, CHUNK // 3)[1] if case.endswith("-1-1-float64") else gathers
        if rank == 0:
            told = {"one": one_process(getattr(torch, case.split("-")[-1])), "many": found}
            torch.save({**told, "gathers": (gathers, finer)}, folder / f"{case}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
