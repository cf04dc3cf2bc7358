"""``mhc_read`` and ``mhc_mix``: the two halves of an mHC site, one autograd function each.

Read saves its inputs and the product with ``fn`` (n (n + 2) numbers a token); the maps are computed from
it again, as columns [n (n + 2), T], so that every operation on them is one sweep over long rows
(sinkhorn.py). Plain torch here; on a GPU the same in triton_read.py and triton_mix.py.

Letters: T tokens (any leading batch flattened), N = n streams, D hidden, F = n D, Z = n (n + 2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.mhc.sinkhorn import sinkhorn, sinkhorn_backward
from genoctx_kernels.numerics import accumulator


class _Maps(NamedTuple):
    """What a site computes from its n (n + 2) numbers a token, before Sinkhorn."""

    z_ZT: Tensor
    pre_NT: Tensor  # without hc_eps
    post_NT: Tensor  # without the factor 2
    soft_NNT: Tensor
    scale_Z1: Tensor  # every row's own scale


def _maps(raw_ZT: Tensor, inv_T: Tensor, base: Tensor, scale: Tensor, n: int) -> _Maps:
    rows = torch.tensor((n, n, n * n), device=scale.device)
    scale_Z1 = scale.to(raw_ZT.dtype).repeat_interleave(rows, output_size=n * (n + 2)).unsqueeze(-1)
    z = raw_ZT * inv_T
    a = torch.addcmul(base.to(z.dtype).unsqueeze(-1), z, scale_Z1)
    gates = torch.sigmoid(a[: 2 * n])
    return _Maps(z, gates[:n], gates[n:], a[2 * n :].unflatten(0, (n, n)).softmax(1), scale_Z1)


class _Read(torch.autograd.Function):
    """Block input x, post and C of a site."""

    @staticmethod
    def forward(
        ctx: Any,
        streams_TND: Tensor,
        fn_ZF: Tensor,
        base: Tensor,
        scale: Tensor,
        iters: int,
        hc_eps: float,
        rms_eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, n = accumulator(streams_TND.dtype), streams_TND.shape[1]
        streams = streams_TND.to(dtype)
        flat = streams.flatten(1)
        # one rms a token scales the product, never the streams
        inv_T = torch.rsqrt(torch.linalg.vector_norm(flat, dim=1).square() / flat.shape[1] + rms_eps)
        raw_ZT = fn_ZF.to(dtype) @ flat.T
        ctx.save_for_backward(streams_TND, fn_ZF, base, scale, raw_ZT, inv_T)
        ctx.iters, ctx.hc_eps = iters, hc_eps
        maps = _maps(raw_ZT, inv_T, base, scale, n)
        comb_NNT = sinkhorn(maps.soft_NNT, iters, hc_eps)
        pre_TN = (maps.pre_NT + hc_eps).T.contiguous()  # bmm is slow with other strides
        x = torch.bmm(pre_TN.unsqueeze(1), streams).squeeze(1)
        comb_TNN = comb_NNT.flatten(0, 1).T.contiguous().unflatten(-1, (n, n))
        return x.to(streams_TND.dtype), 2 * maps.post_NT.T.contiguous(), comb_TNN

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        streams_TND, fn_ZF, base, scale, raw_ZT, inv_T = ctx.saved_tensors
        dtype, n = raw_ZT.dtype, streams_TND.shape[1]
        streams, fn = streams_TND.to(dtype), fn_ZF.to(dtype)
        d_x, d_post, d_comb = (d.to(dtype) for d in d_outputs)
        maps = _maps(raw_ZT, inv_T, base, scale, n)
        d_a_ZT = _d_maps(d_x, d_post, d_comb, streams, maps, ctx)
        d_z = d_a_ZT * maps.scale_Z1
        d_raw = d_z * inv_T
        # d inv / d x = -inv^3 x / F
        along_T = torch.linalg.vecdot(d_z, maps.z_ZT, dim=0) * inv_T.square() / -fn.shape[1]

        flat = streams.flatten(1)
        d_flat = (d_raw.T @ fn).addcmul_(flat, along_T.unsqueeze(-1))
        pre_TN = (maps.pre_NT + ctx.hc_eps).T.contiguous()
        d_streams = d_flat.view_as(streams).addcmul_(pre_TN.unsqueeze(-1), d_x.unsqueeze(1))
        d_fn = (d_raw @ flat).to(fn_ZF.dtype) if ctx.needs_input_grad[1] else None
        by_row = torch.linalg.vecdot(d_a_ZT, maps.z_ZT).split((n, n, n * n))
        d_scale = torch.stack([rows.sum() for rows in by_row]).to(scale.dtype)
        d_base = d_a_ZT.sum(1).to(base.dtype)
        return d_streams.to(streams_TND.dtype), d_fn, d_base, d_scale, None, None, None


def _d_maps(
    d_x_TD: Tensor, d_post_TN: Tensor, d_comb_TNN: Tensor, streams_TND: Tensor, maps: _Maps, ctx: Any
) -> Tensor:
    """Gradient [Z, T] of what the sigmoids and the softmax were given."""
    n = streams_TND.shape[1]
    d_a = torch.empty_like(maps.z_ZT)
    # as a row of d_x against n columns: several times the speed of n rows against a column
    d_pre_T1N = torch.bmm(d_x_TD.unsqueeze(1), streams_TND.mT)
    sigmoid_backward = torch.ops.aten.sigmoid_backward
    d_a[:n] = sigmoid_backward(d_pre_T1N.squeeze(1).T, maps.pre_NT)
    d_a[n : 2 * n] = sigmoid_backward(2 * d_post_TN.T, maps.post_NT)
    d_comb_NNT = d_comb_TNN.flatten(1).T.contiguous().unflatten(0, (n, n))
    d_a[2 * n :] = sinkhorn_backward(d_comb_NNT, maps.soft_NNT, ctx.iters, ctx.hc_eps).flatten(0, 1)
    return d_a


class _Mix(torch.autograd.Function):
    """X'_m = post_m y + sum_s C[s, m] X_s."""

    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, y_TD: Tensor, post_TN: Tensor, comb_TNN: Tensor) -> Tensor:
        ctx.save_for_backward(streams_TND, y_TD, post_TN, comb_TNN)
        dtype = streams_TND.dtype
        mixed = torch.bmm(comb_TNN.to(dtype).mT, streams_TND)
        return mixed.addcmul_(post_TN.to(dtype).unsqueeze(-1), y_TD.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        streams, y, post, comb = ctx.saved_tensors
        d_streams = torch.bmm(comb.to(streams.dtype), d_out)
        d_y = torch.bmm(post.to(y.dtype).unsqueeze(1), d_out).squeeze(1)
        wide = d_out.to(post.dtype)
        d_post = torch.bmm(y.to(post.dtype).unsqueeze(1), wide.mT).squeeze(1)
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
    return _Read.apply(streams_TND, fn, base, scale, iters, hc_eps, rms_eps)


def mhc_mix(streams_TND: Tensor, y_TD: Tensor, post_TN: Tensor, comb_TNN: Tensor) -> Tensor:
    """Write the block output ``y_TD`` back into the streams: [T, n, D]."""
    if choose("mhc", streams_TND, y_TD, post_TN, comb_TNN).triton:
        from genoctx_kernels.mhc.triton_mix import Mix

        return Mix.apply(streams_TND, y_TD, post_TN, comb_TNN)
    return _Mix.apply(streams_TND, y_TD, post_TN, comb_TNN)
