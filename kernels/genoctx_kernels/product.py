"""``product`` and ``linear``: products of a matrix of tokens and a weight, through oneDNN where it can take them.

torch gives float32 products on a CPU to MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN, which is
part of torch, too, uses all there is (twice the rate with AVX-512, the same without). What a row comes out as does
not depend on how many rows there are beside it, from two on: prefixes stay equal to the last bit (decision 002).

Letters: M tokens, K inputs, N outputs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SUMMED = 1024
"""oneDNN adds up in one chain, whose rounding errors grow with its length; MKL cuts it."""


@cache
def _onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _suits(x: Tensor, weight: Tensor) -> bool:
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    return plain and x.ndim > 1 and x.numel() > 0 and weight.numel() > 0 and _onednn()


def product(x: Tensor, weight_NK: Tensor) -> Tensor:
    """x W^T for ``x`` [..., K]: [..., N], outside autograd. Either may be a transposed view."""
    if not _suits(x, weight_NK):
        return x @ weight_NK.mT
    return torch.ops.mkldnn._linear_pointwise(x, weight_NK, None, "none", [], "")


def relu_product(x: Tensor, weight_NK: Tensor) -> Tensor:
    """max(x W^T, 0), in one pass where oneDNN makes it."""
    if not _suits(x, weight_NK):
        return (x @ weight_NK.mT).relu_()
    return torch.ops.mkldnn._linear_pointwise(x, weight_NK, None, "relu", [], "")


def weight_gradient(d_y: Tensor, x: Tensor) -> Tensor:
    """d_y^T x summed over all tokens, [N, K]; sums of at most SUMMED tokens are added up."""
    pairs = zip(d_y.flatten(0, -2).split(SUMMED), x.flatten(0, -2).split(SUMMED), strict=True)
    parts = [product(d.mT, rows.mT) for d, rows in pairs]
    for part in parts[1:]:
        parts[0] += part
    return parts[0]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_NK)
        return product(x, weight_NK)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight_NK = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        d_x = product(d_y, weight_NK.mT) if needs_x else None
        d_weight = weight_gradient(d_y, x) if needs_weight else None
        return d_x, d_weight


def linear(x: Tensor, weight_NK: Tensor) -> Tensor:
    """x W^T for ``x`` [..., K], any dtype and device: [..., N]."""
    return _Linear.apply(x, weight_NK) if _suits(x, weight_NK) else F.linear(x, weight_NK)
