"""``short_conv``: W shifted multiply-adds and SiLU in one autograd function that saves only its inputs.

Plain torch here; on a GPU the same in triton_conv.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.numerics import accumulator


def _by_tap(weight_CW: Tensor, dtype: torch.dtype) -> Tensor:
    """[W, C]: a row for each tap; strided numbers keep products from being vectorised."""
    return weight_CW.to(dtype).T.contiguous()


def _taps(past_BSC: Tensor, weight_WC: Tensor) -> Tensor:
    width = len(weight_WC)
    tokens = past_BSC.shape[1] - width + 1
    out = past_BSC[:, width - 1 :] * weight_WC[width - 1]
    for i in range(width - 1):
        out.addcmul_(past_BSC[:, i : i + tokens], weight_WC[i])
    return out


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_CW: Tensor, tail_BWC: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTC, weight_CW, tail_BWC)
        past = torch.cat((tail_BWC, x_BTC), 1).to(accumulator(x_BTC.dtype))
        pre = _taps(past, _by_tap(weight_CW, past.dtype))
        return torch.nn.functional.silu(pre, inplace=True).to(x_BTC.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        x_BTC, weight_CW, tail_BWC = ctx.saved_tensors
        past = torch.cat((tail_BWC, x_BTC), 1).to(accumulator(x_BTC.dtype))
        weight = _by_tap(weight_CW, past.dtype)
        d_pre = torch.ops.aten.silu_backward(d_y.to(past.dtype), _taps(past, weight))
        width, tokens = len(weight), x_BTC.shape[1]
        d_past = torch.zeros_like(past)
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        product = torch.empty_like(d_pre)
        for i in range(width):
            d_past[:, i : i + tokens].addcmul_(d_pre, weight[i])
            if d_weight is not None:
                torch.mul(d_pre, past[:, i : i + tokens], out=product)
                torch.sum(product, (0, 1), out=d_weight[i])
        d_tail, d_x = d_past[:, : width - 1], d_past[:, width - 1 :]
        d_weight = None if d_weight is None else d_weight.T.contiguous().to(weight_CW.dtype)
        return d_x.to(x_BTC.dtype), d_weight, d_tail.to(tail_BWC.dtype)


def short_conv(x_BTC: Tensor, weight_CW: Tensor, tail_BWC: Tensor) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution of width W, then SiLU. Returns (y [B,T,C], next tail [B,W-1,C]).

    ``x_BTC`` are raw projections; ``tail_BWC`` the W-1 raw tokens before them, oldest first. The last
    tap of ``weight_CW`` meets the current token. Accumulates in float32 (float64 for float64).
    Source: spec section 2.4, step 1.
    """
    width = weight_CW.shape[1]
    tail = torch.cat((tail_BWC, x_BTC[:, -(width - 1) :]), 1)[:, -(width - 1) :]
    if choose("conv", x_BTC, weight_CW, tail_BWC).triton:
        from genoctx_kernels.conv.triton_conv import ShortConv

        return ShortConv.apply(x_BTC, weight_CW, tail_BWC), tail
    return _ShortConv.apply(x_BTC, weight_CW, tail_BWC), tail
