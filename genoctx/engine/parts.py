"""The rows of a parameter that a rank holds, and where they are in the whole."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from genoctx.engine.mesh import Mesh


@dataclass(frozen=True)
class Part:
    """The rows of a parameter that a rank holds: all of them, where it is replicated."""

    local: Tensor
    """Sharing the parameter's memory, on its device."""
    first: int
    """Which row of the whole is its first."""
    shape: tuple[int, ...]
    """Of the whole."""
    working: torch.dtype
    """What the weights are rounded to when they are gathered; the part itself may be wider."""
    replicated: bool
    experts: bool
    """Split by expert before it is sharded."""

    @property
    def last(self) -> int:
        """The row after its last."""
        return self.first + len(self.local)

    def put(self, whole: Tensor) -> None:
        """Take this part's rows of a whole tensor, rounded as the model's weights are."""
        self.local.copy_(whole[self.first : self.last].to(self.working))


def whole_part(parameter: Tensor) -> Part:
    """All of a parameter that every rank has."""
    return Part(parameter.detach(), 0, tuple(parameter.shape), _working(parameter), True, False)


def part_of(name: str, parameter: Tensor, mesh: Mesh) -> Part:
    """This rank's rows of a parameter that FSDP2 has cut; experts are cut over expert groups before."""
    layout, experts, rows = mesh.layout, is_sharded_experts(name, mesh), len(parameter)
    if experts:
        ranks, here, base = layout.world // layout.ep, mesh.rank // layout.ep, mesh.ep_rank * rows
    else:
        ranks, here, base = layout.world, mesh.rank, 0
    first = base + min(here * -(-rows // ranks), rows)  # FSDP2 cuts as torch.chunk does
    whole = (rows * layout.ep if experts else rows, *parameter.shape[1:])
    return Part(local(parameter), first, whole, _working(parameter), False, experts)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory."""
    part = tensor.detach()
    return part.to_local() if isinstance(part, DTensor) else part


def is_sharded_experts(name: str, mesh: Mesh) -> bool:
    """Whether a parameter is split by expert before it is sharded."""
    return mesh.layout.ep > 1 and ".mlp.experts." in name


def _working(parameter: Tensor) -> torch.dtype:
    found: torch.dtype = parameter.working_dtype  # type: ignore[attr-defined]
    return found
