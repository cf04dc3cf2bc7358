"""RMSNorm and LayerNorm with statistics in float32 (float64 for float64)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genoctx_kernels.numerics import up

L2_EPS = 1e-6  # inside the square root, not rms_norm_eps (spec 2.4 step 2)


class RMSNorm(nn.Module):
    """w * cast(x / sqrt(mean(x^2) + eps)) (spec section 2.2)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(up(x), x.shape[-1:], eps=self.eps).to(x.dtype) * self.weight


class LayerNorm(nn.Module):
    """LayerNorm with bias, eps 1e-6: the indexer's key norm (spec section 2.8)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(up(x), x.shape[-1:], up(self.weight), up(self.bias), self.eps)
        return normed.to(x.dtype)


def l2_normalise(x: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-6) over the last axis, in float32 (float64 for float64)."""
    x = up(x)
    return x * torch.rsqrt(torch.linalg.vecdot(x, x).unsqueeze(-1) + L2_EPS)
