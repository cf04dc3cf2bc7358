"""``routed_experts``: every token through its chosen experts, in plain torch here; on a GPU in triton_experts.py.

Letters: M tokens, A choices a token, D hidden, E experts, I expert width, J = 2 I (gate, then up), R rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.swiglu import clamped_swiglu

ROWS = 16
"""Each expert's tokens are padded to a multiple of this. Matrix products of very few rows take other
code paths in BLAS libraries, which round differently: without padding, a later token that joins an
expert could change the last bit of an earlier one."""


class Pair(NamedTuple):
    """A low-rank addition to a weight, of one matrix or of one for each expert: W + B A."""

    a: Tensor
    """[..., R, inputs]."""
    b: Tensor
    """[..., outputs, R]."""


def routed_experts(
    x_MD: Tensor,
    experts_MA: Tensor,
    weights_MA: Tensor,
    gate_up_EJD: Tensor,
    down_EDI: Tensor,
    limit: float,
    inner: Pair | None = None,
    outer: Pair | None = None,
) -> Tensor:
    """sum over the chosen experts of weight * expert(x): [M, D]. Source: spec sections 2.9 and 2.10.

    ``experts_MA`` int64, the experts of a token all different; ``weights_MA`` their weights;
    ``limit`` of the clamped SwiGLU; ``inner`` is added to gate and up, ``outer`` to down, without ever
    being multiplied out. Tokens are sorted by expert, so that each expert makes one product.
    """
    pairs = (*(inner or (None, None)), *(outer or (None, None)))
    if choose("moe", x_MD, experts_MA, weights_MA, gate_up_EJD, down_EDI).triton:
        from genoctx_kernels.moe.triton_experts import RoutedExperts

        return RoutedExperts.apply(x_MD, experts_MA, weights_MA, gate_up_EJD, down_EDI, limit, *pairs)
    flat = experts_MA.flatten()
    order = flat.argsort(stable=True)
    tokens = order // experts_MA.shape[1]
    counts = torch.bincount(flat, minlength=len(gate_up_EJD))
    padded = (counts + (ROWS - 1)) // ROWS * ROWS
    # row of each (token, expert) pair once every group starts at its padded place
    shift = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    place = torch.arange(len(flat), device=flat.device) + shift[flat[order]]
    sizes = padded.tolist()
    x = x_MD.new_zeros(sum(sizes), x_MD.shape[1]).index_copy(0, place, x_MD[tokens])
    first, second = _Grouped(gate_up_EJD, inner), _Grouped(down_EDI, outer)
    parts = [second(clamped_swiglu(first(group, e), limit), e) for e, group in enumerate(x.split(sizes))]
    scaled = torch.cat(parts)[place] * weights_MA.flatten()[order].unsqueeze(-1).to(x_MD.dtype)
    return torch.zeros_like(x_MD).index_add(0, tokens, scaled)


class _Grouped:
    """x -> W_e x, or W_e x + B_e A_e x. Experts are taken apart once: indexing would make a gradient each."""

    def __init__(self, weight: Tensor, pair: Pair | None) -> None:
        self.weights = weight.unbind(0)
        self.pairs = list(zip(pair.a.unbind(0), pair.b.unbind(0), strict=True)) if pair else None

    def __call__(self, x: Tensor, e: int) -> Tensor:
        y = F.linear(x, self.weights[e])
        if self.pairs is None:
            return y
        a, b = self.pairs[e]
        return y + F.linear(F.linear(x, a), b)
