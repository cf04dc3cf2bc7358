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

import warnings
from collections.abc import Callable, Iterator
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
from genoctx.engine.parts import Part, is_sharded_experts, local, part_of, whole_part
from genoctx.errors import ConfigError
from genoctx.model.carry import Aux, Choices, Chunk, DsaCarry, DsaRow, KdaCarry
from genoctx.model.hybrid import Hybrid
from genoctx.model.moe import MoE
from genoctx_kernels.numerics import accumulator

# what a layer returns is changed in place by nobody
warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
# FSDP2 hangs its hooks on the tensors it finds in a layer's arguments and results
for _value in (Aux, Choices, Chunk, DsaCarry, DsaRow, KdaCarry):
    pytree.register_dataclass(_value)


__all__ = ["OnWhole", "Part", "Sharded", "full_tensors", "local", "shard", "whole_tensor"]


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

    def part(self, name: str) -> Part:
        """What this rank holds of the parameter ``name``."""
        replicated = self.replicated.get(name)
        if replicated is not None:
            return whole_part(replicated)
        return part_of(name, self.parameters[name], self.mesh)

    def trained(self, name: str) -> bool:
        """Whether the parameter ``name`` is."""
        return (self.replicated if name in self.replicated else self.parameters)[name].requires_grad

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Every parameter's, in the model's order."""
        for name, _ in self.model.named_parameters():
            yield name, self.part(name)

    def zero_grad(self) -> None:
        for parameter in (*self.parameters.values(), *self.replicated.values()):
            parameter.grad = None

    def abandon(self) -> None:
        """Forget a step that an exception ended: whole weights and half-made gradients."""
        if self._walked:
            self.root.reset_iter_state()
        self.zero_grad()


def shard(model: Hybrid, mesh: Mesh, *, keep: bool, device: str | torch.device | None = None) -> Sharded:
    """Spread ``model``, the same on every rank, over the mesh; its own parameters become parts of it.

    Low-precision trainable parameters become float32 and are rounded when they are gathered, so the
    parts serve as the optimizer's masters. A model on the meta device gets memory for its parts alone, on
    ``device``, with nothing in it. Raises ConfigError for adapters on experts that ranks hold between them.
    """
    refuse_shared_adapters(model, mesh)
    dtype = model.embed_tokens.weight.dtype
    wide = accumulator(dtype)
    held = {name: p for name, p in model.named_parameters() if p.dtype != dtype}
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.to(wide)
    _wrap(model, mesh, dtype, set(held.values()), keep=keep)
    if device is not None:
        model.to_empty(device=device)
    named = dict(model.named_parameters())
    for name, p in named.items():
        p.working_dtype = dtype if p.dtype == wide and name not in held else p.dtype  # type: ignore[attr-defined]
    return Sharded(
        model,
        mesh,
        keep,
        dtype,
        {n: p for n, p in named.items() if n not in held},
        {n: p for n, p in named.items() if n in held},
    )


def _wrap(model: Hybrid, mesh: Mesh, dtype: torch.dtype, held: set[nn.Parameter], *, keep: bool) -> None:
    """FSDP2 around every layer, what expert parallelism cuts within it, and the rest."""
    # whatever is gathered is rounded to the model's dtype; the float32 inputs of a layer stay as they are
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=accumulator(dtype), cast_forward_inputs=False
    )

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


def refuse_shared_adapters(model: Hybrid, mesh: Mesh) -> None:
    """ConfigError for adapters on experts that ranks hold between them."""
    for layer in model.layers:
        if mesh.layout.ep > 1 and isinstance(layer.mlp, MoE) and layer.mlp.experts.adapters:
            raise ConfigError(
                f"adapters on routed experts ({', '.join(layer.mlp.experts.adapters)}) do not go with "
                f"parallel.ep {mesh.layout.ep}",
                "set parallel.ep = 1, or take the routed experts out of lora.targets",
            )


def whole_tensor(sharded: Sharded, name: str, part: Tensor | None = None) -> Tensor:
    """A parameter, or another tensor that is cut as it is (``part`` of this rank), whole on every rank. Collective."""
    if name in sharded.replicated:
        return sharded.replicated[name].detach() if part is None else part
    like = sharded.parameters[name].detach()
    assert isinstance(like, DTensor)
    if part is not None:
        like = DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
    tensor = like.full_tensor()
    if is_sharded_experts(name, sharded.mesh):
        parts = [torch.empty_like(tensor) for _ in range(sharded.mesh.layout.ep)]
        dist.all_gather(parts, tensor, group=sharded.mesh.ep_group)
        tensor = torch.cat(parts)
    return tensor


OnWhole = Callable[[str, Tensor], None]


def full_tensors(sharded: Sharded, visit: OnWhole) -> None:
    """Call ``visit(name, tensor)`` on every rank for every parameter, whole, one at a time, in order.

    Collective; what one process would have as ``named_parameters``, bit for bit.
    """
    for name, _ in sharded.model.named_parameters():
        visit(name, whole_tensor(sharded, name))
