"""The gradients of a step that is not finished, as FSDP2 holds them, for the journal to keep and put back.

Where weights stay gathered over a sweep, FSDP2 sums gradients of whole tensors on every rank and reduces
them once; it has no public name for these sums. This is the one place that knows its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from genoctx.engine.sharding import Sharded, local

_WHOLE, _PART = "whole.", "part."


class HalfMade:
    """The gradient sums of one rank by name: of whole tensors not reduced yet, and of parts."""

    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded

    @property
    def device(self) -> torch.device:
        return self.sharded.model.device

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Every sum there is."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # reductions run on a stream of their own
        gathered = _gathered(self.sharded)
        for name, p in (*self.sharded.parameters.items(), *self.sharded.replicated.items()):
            if (whole := _whole(gathered.get(name))) is not None:
                yield _WHOLE + name, whole
            if p.grad is not None:
                yield _PART + name, local(p.grad)

    @torch.no_grad()
    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """Put a sum of ``gradients`` back."""
        kind, _, name = name.partition(".")
        if kind + "." == _WHOLE:
            _gathered(self.sharded)[name].unsharded_accumulated_grad = gradient
        elif name in self.sharded.replicated:
            self.sharded.replicated[name].grad = gradient
        else:
            p: Any = self.sharded.parameters[name]
            p.grad = DTensor.from_local(
                gradient, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
            )

    def forget(self) -> None:
        """Drop what is not reduced yet."""
        for held in _gathered(self.sharded).values():
            held.unsharded_accumulated_grad = None
            if hasattr(held, "_unsharded_param"):
                held._unsharded_param.grad = None


def _gathered(sharded: Sharded) -> dict[str, Any]:
    """FSDP2's record of every sharded parameter, by name."""
    names = {id(p): name for name, p in sharded.parameters.items()}
    found = {}
    for module in sharded.model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                found.update({names[id(held.sharded_param)]: held for held in group.fsdp_params})
    return found


def _whole(held: Any) -> Tensor | None:
    """The sum over chunks of a whole tensor's gradient, in the dtype it is reduced in."""
    if held is None or held.unsharded_accumulated_grad is not None:
        return None if held is None else held.unsharded_accumulated_grad
    gathered = getattr(held, "_unsharded_param", None)
    return None if gathered is None else gathered.grad
