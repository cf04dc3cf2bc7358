"""RMSNorm, LayerNorm and the L2 norm, with statistics in float32 (float64 for float64).

RMSNorm and the L2 norm are autograd functions with gradients by hand: at the widths of heads autograd's own
go through the tokens two to four times as often.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genoctx_kernels.numerics import up

L2_EPS = 1e-6  # inside the square root, not rms_norm_eps (spec 2.4 step 2)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """(mean x^2 + eps)^-1/2 over the last axis, which stays: [..., 1]."""
    return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps)


def d_normed(d_y: Tensor, y: Tensor, inv: Tensor) -> Tensor:
    """Gradient of x, in the memory of ``d_y``, from that of y = x ``inverse_rms(x)``."""
    along = torch.linalg.vecdot(d_y, y).unsqueeze(-1)
    return d_y.addcmul_(y, along, value=-1 / y.shape[-1]).mul_(inv)


class _RmsNorm(torch.autograd.Function):
    """Saves its inputs and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = up(x)
        inv = inverse_rms(wide, eps)
        ctx.save_for_backward(x, weight, inv)
        return (wide * inv).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, inv = ctx.saved_tensors
        normed = up(x) * inv
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = (d_y * normed.to(x.dtype)).flatten(0, -2).sum(0).to(weight.dtype)
        return d_normed(up(d_y * weight), normed, inv).to(x.dtype), d_weight, None


class RMSNorm(nn.Module):
    """w * cast(x / sqrt(mean(x^2) + eps)) (spec section 2.2)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _RmsNorm.apply(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """LayerNorm with bias, eps 1e-6: the indexer's key norm (spec section 2.8)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(up(x), x.shape[-1:], up(self.weight), up(self.bias), self.eps)
        return normed.to(x.dtype)


class _L2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        wide = up(x)
        inv = torch.rsqrt(torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() + L2_EPS)
        ctx.save_for_backward(x, inv)
        ctx.scale = scale
        return wide * (inv * scale)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
        x, inv = ctx.saved_tensors
        wide = up(x)
        along = torch.linalg.vecdot(d_y, wide).unsqueeze(-1) * inv.square()
        d_x = torch.addcmul(d_y, wide, along, value=-1).mul_(inv * ctx.scale)
        return d_x.to(x.dtype), None


def l2_normalise(x: Tensor, scale: float = 1.0) -> Tensor:
    """scale x / sqrt(sum x^2 + 1e-6) over the last axis, in float32 (float64 for float64)."""
    return _L2.apply(x, scale)
