"""``mhc_read`` and ``mhc_mix``: the two halves of an mHC site, one autograd function each.

The maps are columns [n (n + 2), T], so that every operation on them is one sweep over long rows
(sinkhorn.py). Read saves its inputs and, for each token, 2 n (n + 2) numbers before Sinkhorn and the n
totals of each of its normalisations: making them again costs as much as the way back itself, on one
thread where the rows are short. Plain torch here; on a GPU the same in triton_read.py and triton_mix.py.

Letters: T tokens (any leading batch flattened), N = n streams, D hidden, F = n D, Z = n (n + 2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.mhc.sinkhorn import sinkhorn, sinkhorn_backward
from genoctx_kernels.numerics import accumulator
from genoctx_kernels.product import product, weight_gradient


class _Maps(NamedTuple):
    """What a site makes of its n (n + 2) numbers a token, before Sinkhorn."""

    inv_T: Tensor  # one rms a token scales the product, never the streams
    z_ZT: Tensor
    gates_2NT: Tensor  # pre without hc_eps, then post without the factor 2
    soft_NNT: Tensor
    scale_Z1: Tensor  # every row's own scale


def _maps(flat_TF: Tensor, fn_ZF: Tensor, base: Tensor, scale: Tensor, n: int, rms_eps: float) -> _Maps:
    dtype = flat_TF.dtype
    inv_T = torch.rsqrt(torch.linalg.vector_norm(flat_TF, dim=1).square() / flat_TF.shape[1] + rms_eps)
    raw_TZ = product(flat_TF, fn_ZF.to(dtype))
    z = torch.mul(raw_TZ.T, inv_T, out=raw_TZ.new_empty(raw_TZ.shape[::-1]))
    scales = scale.to(dtype).split(1)
    scale_Z1 = torch.cat([s.expand(rows) for s, rows in zip(scales, (n, n, n * n), strict=True)]).unsqueeze(1)
    a = torch.addcmul(base.to(dtype).unsqueeze(-1), z, scale_Z1)
    return _Maps(inv_T, z, torch.sigmoid(a[: 2 * n]), a[2 * n :].unflatten(0, (n, n)).softmax(1), scale_Z1)


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
        maps = _maps(streams.flatten(1), fn_ZF, base, scale, n, rms_eps)
        comb_NNT, totals_SNT = sinkhorn(maps.soft_NNT, iters, hc_eps)
        pre_TN = (maps.gates_2NT[:n] + hc_eps).T.contiguous()  # bmm is slow with other strides
        comb_TNN = comb_NNT.flatten(0, 1).T.contiguous().unflatten(-1, (n, n))
        ctx.save_for_backward(streams_TND, fn_ZF, pre_TN, comb_TNN, totals_SNT, *maps)
        ctx.hc_eps, ctx.dtypes = hc_eps, (base.dtype, scale.dtype)
        x = torch.bmm(pre_TN.unsqueeze(1), streams).squeeze(1)
        return x.to(streams_TND.dtype), 2 * maps.gates_2NT[n:].T.contiguous(), comb_TNN

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        streams_TND, fn_ZF, pre_TN, comb_TNN, totals_SNT, *saved = ctx.saved_tensors
        maps = _Maps(*saved)
        dtype, n = pre_TN.dtype, streams_TND.shape[1]
        streams, fn = streams_TND.to(dtype), fn_ZF.to(dtype)
        d_x, d_post, d_comb = (d.to(dtype) for d in d_outputs)
        d_a_ZT = torch.empty_like(maps.z_ZT)
        d_a_ZT[: 2 * n] = _d_gates(d_x, d_post, streams, maps.gates_2NT)
        y_NNT = _columns(comb_TNN)
        w_NNT = _columns(d_comb).mul_(y_NNT)
        d_a_ZT[2 * n :] = sinkhorn_backward(w_NNT, y_NNT, totals_SNT, maps.soft_NNT, ctx.hc_eps).flatten(0, 1)

        d_z = d_a_ZT * maps.scale_Z1
        d_raw = d_z * maps.inv_T
        # d inv / d x = -inv^3 x / F
        along_T = torch.linalg.vecdot(d_z, maps.z_ZT, dim=0) * maps.inv_T.square() / -fn.shape[1]
        flat = streams.flatten(1)
        d_flat = product(d_raw.T, fn.T).addcmul_(flat, along_T.unsqueeze(-1))
        d_streams = d_flat.view_as(streams).addcmul_(pre_TN.unsqueeze(-1), d_x.unsqueeze(1))
        d_fn = weight_gradient(d_raw.T, flat).to(fn_ZF.dtype) if ctx.needs_input_grad[1] else None
        by_row = torch.linalg.vecdot(d_a_ZT, maps.z_ZT).split((n, n, n * n))
        d_scale = torch.stack([rows.sum() for rows in by_row]).to(ctx.dtypes[1])
        d_base = d_a_ZT.sum(1).to(ctx.dtypes[0])
        return d_streams.to(streams_TND.dtype), d_fn, d_base, d_scale, None, None, None


def _columns(maps_TNN: Tensor) -> Tensor:
    """A copy in the layout [N, N, T]."""
    return maps_TNN.movedim(0, -1).clone(memory_format=torch.contiguous_format)


def _d_gates(d_x_TD: Tensor, d_post_TN: Tensor, streams_TND: Tensor, gates_2NT: Tensor) -> Tensor:
    """Gradient [2 N, T] of what the sigmoids were given."""
    # as a row of d_x against n columns: several times the speed of n rows against a column
    d_pre_TN = torch.bmm(d_x_TD.unsqueeze(1), streams_TND.mT).squeeze(1)
    d_gates = torch.cat((d_pre_TN.T, 2 * d_post_TN.T))
    return torch.ops.aten.sigmoid_backward(d_gates, gates_2NT)


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
