"""Parameters, gradients and moments spread over all ranks: FSDP2 around the layers of a model.

Weights are gathered for a layer when its turn comes. Two ways to keep them (``keep``):

- True: gathered once a sweep. Weights stay whole, gradients are summed whole in float32, and one
  reduce-scatter a step hands every rank its part. The number of collectives does not depend on the
  number of chunks.
- False: layer by layer. Weights are gathered for each chunk's forward and backward pass, and gradients
  are reduced chunk by chunk into the rank's float32 part. One layer is whole at a time.

Gradients are sums, never means: the loss is divided once, by a denominator over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from genoctx.engine.experts import ExpertParallel
from genoctx.engine.mesh import Mesh
from genoctx.model.carry import Aux, Choices, Chunk, DsaCarry, DsaRow, KdaCarry
from genoctx.model.hybrid import Hybrid
from genoctx.model.moe import MoE
from genoctx_kernels.numerics import accumulator

# FSDP2 hangs its hooks on the tensors it finds in a layer's arguments and results
for _value in (Aux, Choices, Chunk, DsaCarry, DsaRow, KdaCarry):
    pytree.register_dataclass(_value)


@dataclass
class Sharded:
    """A model whose parameters are spread over a mesh. Made by :func:`shard`."""

    model: Hybrid
    mesh: Mesh
    keep: bool
    """Weights stay gathered over the chunks of a sweep."""
    dtype: torch.dtype
    """Of weights and activations in a sweep; the parts are float32 at least."""
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    """By name, the rank's parts: DTensors. With expert parallelism, experts are those of this rank."""
    replicated: dict[str, nn.Parameter] = field(default_factory=dict)
    """Small float32 parameters of a bfloat16 model, whole on every rank."""
    _left: int = 0
    _walked: bool = False

    def __post_init__(self) -> None:
        self.model.register_forward_pre_hook(self._note)

    def _note(self, module: nn.Module, arguments: object) -> None:
        """FSDP2 builds its streams in the first forward pass; before, there is nothing to forget."""
        self._walked = True

    @property
    def root(self) -> FSDPModule:
        assert isinstance(self.model, FSDPModule)
        return self.model

    def expect(self, chunks: int) -> None:
        """Announce how many backward chunks the step has: the last one reduces the gradients."""
        self._left = chunks
        self._set_last(chunks == 1)

    def passed(self) -> None:
        """One backward chunk is done."""
        self._left -= 1
        if self._left == 1:
            self._set_last(True)

    def _set_last(self, last: bool) -> None:
        self.root.set_is_last_backward(last)
        if self.keep:
            self.root.set_requires_gradient_sync(last)
            self.root.set_reshard_after_backward(last)

    def local_gradients(self) -> dict[str, Tensor]:
        """This rank's part of every gradient there is; sums over all ranks of the replicated ones."""
        found = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                found[name] = local(parameter.grad)
        for name, parameter in self.replicated.items():
            if parameter.requires_grad:
                total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(total, group=self.mesh.all.get_group())
                found[name] = total
        return found

    def zero_grad(self) -> None:
        for parameter in (*self.parameters.values(), *self.replicated.values()):
            parameter.grad = None

    def abandon(self) -> None:
        """Forget a step that an exception ended: whole weights and half-made gradients."""
        if self._walked:
            self.root.reset_iter_state()
        self.zero_grad()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory."""
    part = tensor.detach()
    return part.to_local() if isinstance(part, DTensor) else part


def is_sharded_experts(name: str, mesh: Mesh) -> bool:
    """Whether a parameter is split by expert before it is sharded."""
    return mesh.layout.ep > 1 and ".mlp.experts." in name


def whole_shape(name: str, part: Tensor, mesh: Mesh) -> tuple[int, ...]:
    """Shape of the parameter ``name`` as one process has it."""
    first, *rest = part.shape
    return (first * mesh.layout.ep if is_sharded_experts(name, mesh) else first, *rest)


def shard(model: Hybrid, mesh: Mesh, *, keep: bool) -> Sharded:
    """Spread ``model``, the same on every rank, over the mesh; its own parameters become parts of it.

    Low-precision trainable parameters become float32 and are rounded when they are gathered, so the
    parts serve as the optimizer's masters.
    """
    dtype = model.embed_tokens.weight.dtype
    wide = accumulator(dtype)
    held = {p for p in model.parameters() if p.dtype != dtype}
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.to(wide)
    # whatever is gathered is rounded to the model's dtype; the float32 inputs of a layer stay as they are
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)

    def wrap(module: nn.Module, over: object) -> None:
        fully_shard(module, mesh=over, mp_policy=policy, reshard_after_forward=not keep, ignored_params=held)  # type: ignore[call-overload]

    for layer in model.layers:
        if mesh.layout.ep > 1 and isinstance(layer.mlp, MoE):
            layer.mlp.experts = ExpertParallel(layer.mlp.experts, mesh.ep_group)  # type: ignore[assignment]
            wrap(layer.mlp.experts, mesh.experts["copy"])
        wrap(layer, mesh.all)
    wrap(model, mesh.all)
    root: Any = model
    root.set_reshard_after_forward(False, recurse=False)  # the head is used after the forward pass
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    root.set_reduce_scatter_unused_params(True)  # a rank with nothing to do has no indexer loss
    named = dict(model.named_parameters())
    for p in named.values():
        p.working_dtype = dtype if p.dtype == wide and p not in held else p.dtype  # type: ignore[attr-defined]
    return Sharded(
        model,
        mesh,
        keep,
        dtype,
        {n: p for n, p in named.items() if p not in held},
        {n: p for n, p in named.items() if p in held},
    )


OnWhole = Callable[[str, Tensor], None]


def full_tensors(sharded: Sharded, visit: OnWhole) -> None:
    """Call ``visit(name, tensor)`` on every rank for every parameter, whole, one at a time, in order.

    Collective; what one process would have as ``named_parameters``, bit for bit.
    """
    for name, _ in sharded.model.named_parameters():
        if name in sharded.replicated:
            visit(name, sharded.replicated[name].detach())
            continue
        whole = sharded.parameters[name].detach()
        assert isinstance(whole, DTensor)
        tensor = whole.full_tensor()
        if is_sharded_experts(name, sharded.mesh):
            parts = [torch.empty_like(tensor) for _ in range(sharded.mesh.layout.ep)]
            dist.all_gather(parts, tensor, group=sharded.mesh.ep_group)
            tensor = torch.cat(parts)
        visit(name, tensor)
