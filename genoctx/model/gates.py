"""The two gates of a KDA layer (spec section 2.4) as autograd functions with gradients by hand.

What they do is a few operations on every number; autograd's own way back takes three times as many passes
over memory and keeps more of them. Letters: B rows, T tokens, H heads, K width of a head, C = H K.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx.model.norms import d_normed, inverse_rms
from genoctx_kernels.numerics import up


def _over_tokens(x: Tensor) -> Tensor:
    """Sum over all axes but the last."""
    return x.flatten(0, -2).sum(0)


class _LogDecay(torch.autograd.Function):
    """Saves its own result, which the recurrence keeps anyway, and f where rates are trained."""

    @staticmethod
    def forward(ctx: Any, f_BTC: Tensor, dt_bias: Tensor, rate: Tensor, bound: float) -> Tensor:
        g = (up(f_BTC) + dt_bias).mul_(rate).sigmoid_().mul_(bound)
        ctx.save_for_backward(f_BTC if ctx.needs_input_grad[2] else None, dt_bias, rate, g)
        ctx.bound, ctx.dtype = bound, f_BTC.dtype
        return g

    @staticmethod
    def backward(ctx: Any, d_g: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        f_BTC, dt_bias, rate, g = ctx.saved_tensors
        # bound s (1 - s) = g - g^2 / bound
        d_a = torch.addcmul(g, g, g, value=-1 / ctx.bound).mul_(d_g)
        d_dt = _over_tokens(d_a) * rate if ctx.needs_input_grad[1] else None
        d_rate = _over_tokens((up(f_BTC) + dt_bias).mul_(d_a)) if ctx.needs_input_grad[2] else None
        return d_a.mul_(rate).to(ctx.dtype), d_dt, d_rate, None


def log_decay(f_BTC: Tensor, dt_bias_C: Tensor, a_log_H: Tensor, bound: float) -> Tensor:
    """bound sigmoid(exp(A_log) (f + dt_bias)), in (bound, 0): [B, T, H, K], float32 (float64 for float64)."""
    heads = len(a_log_H)
    rate_C = up(a_log_H).exp().unsqueeze(-1).expand(-1, len(dt_bias_C) // heads).flatten()
    return _LogDecay.apply(f_BTC, up(dt_bias_C), rate_C, bound).unflatten(-1, (heads, -1))


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTHK: Tensor, gate_BTC: Tensor, weight_K: Tensor, eps: float) -> Tensor:
        wide = up(x_BTHK)
        inv = inverse_rms(wide, eps).contiguous()
        # the recurrence returns heads before tokens; the projection that follows wants them after
        normed_BTC = torch.mul(wide, inv, out=wide.new_empty(wide.shape)).flatten(-2)
        share = torch.sigmoid(up(gate_BTC))
        weight_C = up(weight_K).repeat(x_BTHK.shape[-2])
        ctx.save_for_backward(normed_BTC, inv, share, weight_C)
        ctx.dtypes = x_BTHK.dtype, gate_BTC.dtype, weight_K.dtype
        return (normed_BTC * weight_C).mul_(share).to(gate_BTC.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        normed_BTC, inv_BTH1, share, weight_C = ctx.saved_tensors
        of_x, of_gate, of_weight = ctx.dtypes
        heads = inv_BTH1.shape[-2]
        d_scaled = up(d_y) * share
        d_weight_C = d_scaled * normed_BTC  # of every token
        d_gate = d_weight_C * weight_C
        d_gate.addcmul_(d_gate, share, value=-1)
        d_x = d_normed(
            d_scaled.mul_(weight_C).unflatten(-1, (heads, -1)),
            normed_BTC.unflatten(-1, (heads, -1)),
            inv_BTH1,
        )
        d_weight = None
        if ctx.needs_input_grad[2]:
            d_weight = _over_tokens(d_weight_C).unflatten(0, (heads, -1)).sum(0).to(of_weight)
        return d_x.to(of_x), d_gate.to(of_gate), d_weight, None


def gated_norm(x_BTHK: Tensor, gate_BTC: Tensor, weight_K: Tensor, eps: float) -> Tensor:
    """weight rms(x) sigmoid(gate), the norm over K and first, inside in float32: [B, T, C] in the gate's dtype."""
    return _GatedNorm.apply(x_BTHK, gate_BTC, weight_K, eps)
