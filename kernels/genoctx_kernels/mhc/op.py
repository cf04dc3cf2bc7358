"""``mhc_read`` and ``mhc_mix``: the two halves of an mHC site, each saving only its inputs.

The n x n maps live as [n, n, T], so that each of the 2*iters-1 normalisations is a sweep over long
contiguous rows. Backward recomputes them from the logits (16 numbers a token).
Plain torch here; on a GPU the same in triton_read.py and triton_mix.py.

Letters: T tokens (any leading batch flattened), N = n streams, D hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.numerics import accumulator


class _Sinkhorn(torch.autograd.Function):
    """softmax over axis 1, + eps, then column (axis 0) and row (axis 1) normalisations, columns last."""

    @staticmethod
    def _axes(iters: int) -> list[int]:
        return [0] + [1, 0] * (iters - 1)

    @staticmethod
    def forward(ctx: Any, logits_NNT: Tensor, iters: int, eps: float) -> Tensor:
        ctx.save_for_backward(logits_NNT)
        ctx.iters, ctx.eps = iters, eps
        c = logits_NNT.softmax(1).add_(eps)
        for axis in _Sinkhorn._axes(iters):
            c.div_(c.sum(axis, keepdim=True).add_(eps))
        return c

    @staticmethod
    def backward(ctx: Any, d_c: Tensor) -> tuple[Tensor, None, None]:
        (logits,) = ctx.saved_tensors
        soft = logits.softmax(1)
        c, steps = soft + ctx.eps, []
        for axis in _Sinkhorn._axes(ctx.iters):
            total = c.sum(axis, keepdim=True).add_(ctx.eps)
            c = c / total
            steps.append((axis, c, total))
        d = d_c.clone()
        for axis, y, total in reversed(steps):
            # y = x / (sum x + eps):  dx = (dy - sum(dy y)) / (sum x + eps)
            d.sub_((d * y).sum(axis, keepdim=True)).div_(total)
        return torch.ops.aten._softmax_backward_data(d, soft, 1, soft.dtype), None, None


class _Collapse(torch.autograd.Function):
    """sum_s pre_s X_s without keeping the weighted streams."""

    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, pre_TN: Tensor) -> Tensor:
        ctx.save_for_backward(streams_TND, pre_TN)
        x = torch.bmm(pre_TN.unsqueeze(1), streams_TND.to(pre_TN.dtype)).squeeze(1)
        return x.to(streams_TND.dtype)

    @staticmethod
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, Tensor]:
        streams, pre = ctx.saved_tensors
        d_x = d_x.to(pre.dtype)
        d_pre = torch.bmm(streams.to(pre.dtype), d_x.unsqueeze(-1)).squeeze(-1)
        return torch.bmm(pre.unsqueeze(-1), d_x.unsqueeze(1)).to(streams.dtype), d_pre


class _Project(torch.autograd.Function):
    """fn . rms(vec X): the rms is one number a token, so it scales the product, never the streams."""

    @staticmethod
    def forward(ctx: Any, flat_TF: Tensor, fn_ZF: Tensor, eps: float) -> Tensor:
        dtype = accumulator(flat_TF.dtype)
        flat, fn = flat_TF.to(dtype), fn_ZF.to(dtype)
        inv = torch.rsqrt(torch.linalg.vecdot(flat, flat) / flat.shape[-1] + eps).unsqueeze(-1)
        raw = flat @ fn.T
        ctx.save_for_backward(flat_TF, fn_ZF, inv, raw)
        return raw * inv

    @staticmethod
    def backward(ctx: Any, d_z: Tensor) -> tuple[Tensor, Tensor | None, None]:
        flat_TF, fn_ZF, inv, raw = ctx.saved_tensors
        flat, fn = flat_TF.to(raw.dtype), fn_ZF.to(raw.dtype)
        d_raw = d_z * inv
        # d inv / d x = -inv^3 x / F
        along = (d_z * raw).sum(-1, keepdim=True) * inv.pow(3) / -flat.shape[-1]
        d_flat = torch.addmm(flat * along, d_raw, fn)
        d_fn = (d_raw.T @ flat).to(fn_ZF.dtype) if ctx.needs_input_grad[1] else None
        return d_flat.to(flat_TF.dtype), d_fn, None


class _Mix(torch.autograd.Function):
    """X'_m = post_m y + sum_s C[s, m] X_s."""

    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, y_TD: Tensor, post_TN: Tensor, comb_TNN: Tensor) -> Tensor:
        ctx.save_for_backward(streams_TND, y_TD, post_TN, comb_TNN)
        dtype = streams_TND.dtype
        mixed = torch.bmm(comb_TNN.to(dtype).mT.contiguous(), streams_TND)
        return mixed.addcmul_(post_TN.to(dtype).unsqueeze(-1), y_TD.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        streams, y, post, comb = ctx.saved_tensors
        d_streams = torch.bmm(comb.to(streams.dtype), d_out)
        d_y = torch.bmm(post.to(y.dtype).unsqueeze(1), d_out).squeeze(1)
        wide = d_out.to(post.dtype)
        d_post = torch.bmm(wide, y.to(post.dtype).unsqueeze(-1)).squeeze(-1)
        d_comb = torch.bmm(streams.to(comb.dtype), wide.mT)
        return d_streams, d_y, d_post, d_comb


def mhc_read(
    streams_TND: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iters: int, hc_eps: float, rms_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Maps of one site and the block input.

    ``fn`` [2n + n*n, n*D], ``base`` [2n + n*n], ``scale`` [3]. Returns x [T, D] in the streams'
    dtype, post [T, n] and C [T, n, n] in float32 (float64 for float64). Source: spec section 2.3.
    """
    if choose("mhc", streams_TND, fn, base, scale).triton:
        from genoctx_kernels.mhc.triton_read import Read

        return Read.apply(streams_TND, fn, base, scale, iters, hc_eps, rms_eps)
    n = streams_TND.shape[1]
    z = _Project.apply(streams_TND.flatten(1), fn, rms_eps)
    base, scale = base.to(z.dtype), scale.to(z.dtype)
    pre = torch.sigmoid(scale[0] * z[:, :n] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(scale[1] * z[:, n : 2 * n] + base[n : 2 * n])
    logits = (scale[2] * z[:, 2 * n :] + base[2 * n :]).T.contiguous().unflatten(0, (n, n))
    comb_NNT = _Sinkhorn.apply(logits, iters, hc_eps)
    comb_TNN = comb_NNT.flatten(0, 1).T.contiguous().unflatten(-1, (n, n))
    return _Collapse.apply(streams_TND, pre), post, comb_TNN


def mhc_mix(streams_TND: Tensor, y_TD: Tensor, post_TN: Tensor, comb_TNN: Tensor) -> Tensor:
    """Write the block output ``y_TD`` back into the streams: [T, n, D]."""
    if choose("mhc", streams_TND, y_TD, post_TN, comb_TNN).triton:
        from genoctx_kernels.mhc.triton_mix import Mix

        return Mix.apply(streams_TND, y_TD, post_TN, comb_TNN)
    return _Mix.apply(streams_TND, y_TD, post_TN, comb_TNN)
