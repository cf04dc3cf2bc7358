"""What a run with adapters trains, whole on one rank: small beside the weights, and kept as one process keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from genoctx.engine.moments import MASTER
from genoctx.engine.sharded import ShardedOptimizer
from genoctx.engine.sharding import Sharded, whole_tensor
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora import add_adapters


@dataclass(frozen=True)
class Gathered:
    """The optimizer of all ranks as one process has it."""

    tensors: dict[str, Tensor]

    def state(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()


def stand_in(sharded: Sharded) -> Hybrid:
    """The model of one process with memory, undefined, for what is trained; the rest is on the meta device."""
    model = sharded.model
    assert model.lora is not None
    made = build(model.config, dtype=sharded.dtype, device="meta")
    add_adapters(made, replace(model.lora), seed=0)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    for name, p in list(made.named_parameters()):
        owner, _, last = name.rpartition(".")
        mine = torch.empty(p.shape, dtype=p.dtype) if name in trained else p.detach()
        setattr(made.get_submodule(owner), last, nn.Parameter(mine, requires_grad=name in trained))
    return made


@torch.no_grad()
def gather(sharded: Sharded, optimizer: ShardedOptimizer) -> tuple[Hybrid, Gathered] | None:
    """On the first rank the trained tensors in a :func:`stand_in`, and the optimizer's. Collective."""
    mesh = sharded.mesh
    made = stand_in(sharded) if mesh.first else None
    tensors: dict[str, Tensor] = {}
    for name, part in sharded.parts():
        if not sharded.trained(name):
            continue
        whole = whole_tensor(sharded, name)
        if made is not None:
            made.get_parameter(name).copy_(whole)
            if part.local.dtype != part.working:
                tensors[f"{MASTER}.{name}"] = whole.to("cpu", copy=True)
    for key, value in optimizer.state():
        whole = whole_tensor(sharded, key.partition(".")[2], value) if value.ndim else value
        if mesh.first:
            tensors[key] = whole.to("cpu", copy=True)
    return None if made is None else (made, Gathered(tensors))


@torch.no_grad()
def scatter(sharded: Sharded, made: Hybrid) -> None:
    """Every rank takes its parts of what is trained from a :func:`stand_in` that it has filled."""
    for name, part in sharded.parts():
        if sharded.trained(name):
            part.put(made.get_parameter(name))
