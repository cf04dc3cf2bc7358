"""Every op with inputs of ragged lengths, in float64, and the same op in plain torch.

Letters as in the ops; M tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.conv import short_conv
from genoctx_kernels.dispatch import plain_torch
from genoctx_kernels.dsa import sparse_attention
from genoctx_kernels.dsa.reference import select_reference
from genoctx_kernels.kda import kda
from genoctx_kernels.loss import linear_cross_entropy
from genoctx_kernels.mhc import mhc_mix, mhc_read
from genoctx_kernels.moe import routed_experts
from genoctx_kernels.swiglu import clamped_swiglu

DEVICE = os.environ.get("GENOCTX_TEST_DEVICE", "cuda")
Op = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """``op`` takes ``inputs``."""

    op: Op
    inputs: list[Tensor]

    def plain(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """``op`` in plain torch, which is the equation to 1e-10 in float64 (tests/kernels)."""
        with plain_torch():
            return self.op(*inputs)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal, float64, the same on every machine."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(DEVICE)


def kda_case(tokens: int) -> Case:
    heads, width = 2, 128
    q, k = (F.normalize(draw(1, tokens, heads, width, seed=i), dim=-1) for i in range(2))
    inputs = [q * width**-0.5, k, draw(1, tokens, heads, width, seed=2)]
    inputs.append(-5 * torch.sigmoid(2 * draw(1, tokens, heads, width, seed=3)))
    inputs.append(torch.sigmoid(draw(1, tokens, heads, seed=4)))
    return Case(kda, [*inputs, draw(1, heads, width, width, seed=5)])


def conv_case(tokens: int) -> Case:
    inputs = [draw(1, tokens, 384), draw(384, 4, seed=1), draw(1, 3, 384, seed=2)]
    return Case(lambda x, w, tail: short_conv(x, w, tail)[0], inputs)


def read_case(tokens: int) -> Case:
    site = {"iters": 20, "hc_eps": 1e-6, "rms_eps": 1e-5}
    inputs = [
        draw(tokens, 4, 512),
        draw(24, 2048, seed=1) / 2048**0.5,
        draw(24, seed=2),
        draw(3, seed=3),
    ]
    return Case(partial(mhc_read, **site), inputs)


def mix_case(tokens: int) -> Case:
    inputs = [
        draw(tokens, 4, 512),
        draw(tokens, 512, seed=1),
        draw(tokens, 4, seed=2),
        draw(tokens, 4, 4, seed=3),
    ]
    return Case(mhc_mix, inputs)


def swiglu_case(tokens: int) -> Case:
    return Case(lambda x: clamped_swiglu(x, 2.0), [4 * draw(tokens, 1024)])


def loss_case(tokens: int) -> Case:
    g = torch.Generator().manual_seed(2)
    targets = torch.randint(0, 1000, (tokens,), generator=g)
    targets[::7] = -100
    targets = targets.to(DEVICE)
    return Case(
        lambda h, w: linear_cross_entropy(h, w, targets),
        [draw(tokens, 256), draw(1000, 256, seed=1) / 16],
    )


def moe_case(tokens: int) -> Case:
    hidden, width, experts, choices = 256, 192, 12, 2
    scores = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(4))
    scores[:, -2] = 2.0  # an expert that nobody chooses
    ids = scores.argsort(1)[:, :choices].contiguous().to(DEVICE)
    return Case(
        lambda x, w, gate_up, down: routed_experts(x, ids, w, gate_up, down, 2.0),
        [
            draw(tokens, hidden),
            draw(tokens, choices, seed=1),
            draw(experts, 2 * width, hidden, seed=2) / 16,
            draw(experts, hidden, width, seed=3) / 16,
        ],
    )


def attention_case(tokens: int, heads: int = 8, width: int = 128, top: int = 16) -> Case:
    pool, scale = 4, 0.1
    scores = draw(tokens, tokens // pool, seed=2).cpu()
    ids = select_reference(scores, pool, top)

    def op(q: Tensor, latents: Tensor) -> Tensor:
        buffer = latents.new_zeros(-(-tokens // pool) * pool, width)
        buffer[:tokens] = latents.detach()
        return sparse_attention(q, latents, buffer, ids.to(DEVICE), first=0, pool=pool, scale=scale)

    return Case(op, [draw(tokens, heads, width), draw(tokens, width, seed=1)])


CASES: dict[str, Callable[[int], Case]] = {
    "kda": kda_case,
    "conv": conv_case,
    "mhc_read": read_case,
    "mhc_mix": mix_case,
    "swiglu": swiglu_case,
    "loss": loss_case,
    "moe": moe_case,
    "attention": attention_case,
}
