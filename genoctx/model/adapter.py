"""Low-rank adapters: y = W x + (alpha / r) B A x, on the activations, so that W never gets a gradient.

Source: LoRA, arXiv 2106.09685. Adapters are float32 (float64 in a float64 model) whatever the weights are,
and multiply in the dtype of the activations. They are token-local, so a streamed window needs nothing more.

Letters: I inputs, O outputs, R rank, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from genoctx_kernels.moe import Pair
from genoctx_kernels.numerics import accumulator
from genoctx_kernels.product import linear


@dataclass(frozen=True)
class Lora:
    """Adapters of one rank beside the linears that ``targets`` match."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    base: Path | None = None
    """Directory of the weights they stand beside."""
    base_digest: str = ""
    """``lora_file.fingerprint`` of it."""

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / self.rank


ADAPTER_PARTS = (".lora_A", ".lora_B")
"""How the names of parameters that belong to an adapter end."""


class LowRank(nn.Module):
    """The pair A [R, I], B [O, R]; of grouped experts A [E, R, I], B [E, O, R]. B = 0 before the first step."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        """For ``weight`` [..., O, I], of which only shape, device and dtype are looked at."""
        super().__init__()
        *groups, outputs, inputs = weight.shape
        dtype = accumulator(weight.dtype)
        self.lora_A = nn.Parameter(torch.empty(*groups, rank, inputs, dtype=dtype, device=weight.device))
        self.lora_B = nn.Parameter(torch.zeros(*groups, outputs, rank, dtype=dtype, device=weight.device))
        self.scale = scale

    def drawn(self, generator: torch.Generator) -> Tensor:
        """A fresh A: uniform in +-1/sqrt(I), float32 on the CPU."""
        return (torch.rand(self.lora_A.shape, generator=generator) * 2 - 1) * self.lora_A.shape[-1] ** -0.5

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Fresh values: A drawn, B zero."""
        self.lora_A.copy_(self.drawn(generator))
        self.lora_B.zero_()

    def pair(self, dtype: torch.dtype) -> Pair:
        """(A, scale * B) in the dtype of the activations."""
        return Pair(self.lora_A.to(dtype), (self.scale * self.lora_B).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """scale * B A x for ``x`` [..., I]."""
        a, b = self.pair(x.dtype)
        return linear(linear(x, a), b)

    @torch.no_grad()
    def delta(self) -> Tensor:
        """scale * B A, what merging adds to the weight: [..., O, I] in the adapters' dtype."""
        return self.scale * (self.lora_B @ self.lora_A)


class AdaptedLinear(nn.Linear):
    """A linear without bias whose weight keeps its name, and an adapter beside it."""

    adapter: LowRank

    @classmethod
    def around(cls, linear: nn.Linear, adapter: LowRank) -> AdaptedLinear:
        """Takes the weight of ``linear`` over, without a copy."""
        weight = linear.weight
        with torch.device("meta"):
            made = cls(linear.in_features, linear.out_features, bias=False)
        made.weight = weight
        made.adapter = adapter
        return made

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight) + self.adapter(x)


def pair_of(linear: nn.Module, dtype: torch.dtype) -> Pair | None:
    """(A, scale * B) of a linear that has an adapter, for callers that use its weight directly."""
    return linear.adapter.pair(dtype) if isinstance(linear, AdaptedLinear) else None
