"""``mhc_mix`` in Triton, with post and C rounded to the streams' dtype first (spec section 2.3).

    X'_m = post_m y + sum_s C_sm X_s
    d_y = sum_m post_m d_m    d_X_s = sum_m C_sm d_m    d_post_m = y . d_m    d_C_sm = X_s . d_m

Letters: T tokens, N = n streams (s reads, m writes), D hidden.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.mhc.triton_streams import COLUMNS, ROWS, load_stream


@triton.jit
def _rounded(map_ptr, t, there, place, STRIDE: tl.constexpr, like):
    """One number a token of a map, rounded to the dtype behind ``like``: float32 [BT, 1]."""
    value = tl.load(map_ptr + t * STRIDE + place, mask=there, other=0.0)
    return value.to(like.dtype.element_ty).to(tl.float32)[:, None]


@triton.jit(do_not_specialize=["tokens"])
def mix_kernel(
    x_ptr, y_ptr, post_ptr, comb_ptr, out_ptr, tokens,
    N: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """All streams of one tile of tokens and columns."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    row_there = t < tokens
    there = row_there[:, None] & (d < D)[None, :]
    y = load_stream(y_ptr, t, 0, d, there, 1, D)
    for m in tl.static_range(N):
        out = _rounded(post_ptr, t, row_there, m, N, x_ptr) * y
        for s in tl.static_range(N):
            comb = _rounded(comb_ptr, t, row_there, s * N + m, N * N, x_ptr)
            out += comb * load_stream(x_ptr, t, s, d, there, N, D)
        tl.store(out_ptr + (t * N + m)[:, None] * D + d[None, :], out, mask=there)


@triton.jit(do_not_specialize=["tokens"])
def d_mix_kernel(
    x_ptr, y_ptr, post_ptr, comb_ptr, d_out_ptr, d_x_ptr, d_y_ptr, d_post_ptr, d_comb_ptr, tokens,
    N: tl.constexpr, NP: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """All gradients of a tile of tokens, walking the columns; row N of the small products is d_post."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    row_there = t < tokens
    pair = tl.arange(0, NP)
    small = tl.zeros([BT, NP], tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        there = row_there[:, None] & (d < D)[None, :]
        y = load_stream(y_ptr, t, 0, d, there, 1, D)
        d_y = tl.zeros([BT, BD], tl.float32)
        for m in tl.static_range(N):
            d_out = load_stream(d_out_ptr, t, m, d, there, N, D)
            d_y += _rounded(post_ptr, t, row_there, m, N, x_ptr) * d_out
            small += tl.where((pair == N * N + m)[None, :], tl.sum(y * d_out, 1)[:, None], 0.0)
        tl.store(d_y_ptr + t[:, None] * D + d[None, :], d_y, mask=there)
        for s in tl.static_range(N):
            x = load_stream(x_ptr, t, s, d, there, N, D)
            d_x = tl.zeros([BT, BD], tl.float32)
            for m in tl.static_range(N):
                d_out = load_stream(d_out_ptr, t, m, d, there, N, D)
                d_x += _rounded(comb_ptr, t, row_there, s * N + m, N * N, x_ptr) * d_out
                small += tl.where((pair == s * N + m)[None, :], tl.sum(x * d_out, 1)[:, None], 0.0)
            tl.store(d_x_ptr + (t * N + s)[:, None] * D + d[None, :], d_x, mask=there)
    comb_at = d_comb_ptr + t[:, None] * (N * N) + pair[None, :]
    tl.store(comb_at, small, mask=row_there[:, None] & (pair < N * N)[None, :])
    post_at = d_post_ptr + t[:, None] * N + pair[None, :] - N * N
    tl.store(post_at, small, mask=row_there[:, None] & ((pair >= N * N) & (pair < N * N + N))[None, :])


class Mix(torch.autograd.Function):
    """``op.mhc_mix``; saves only its inputs."""

    @staticmethod
    def forward(ctx: Any, streams_TND: Tensor, y_TD: Tensor, post_TN: Tensor, comb_TNN: Tensor) -> Tensor:
        inputs = tuple(x.contiguous() for x in (streams_TND, y_TD, post_TN, comb_TNN))
        ctx.save_for_backward(*inputs)
        tokens, n, hidden = streams_TND.shape
        out = torch.empty_like(inputs[0])
        mix_kernel[(triton.cdiv(tokens, ROWS), triton.cdiv(hidden, COLUMNS))](
            *inputs, out, tokens, N=n, D=hidden, BT=ROWS, BD=COLUMNS, enable_fp_fusion=True
        )
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        inputs = ctx.saved_tensors
        tokens, n, hidden = inputs[0].shape
        gradients = tuple(torch.empty_like(x) for x in inputs)
        d_mix_kernel[(triton.cdiv(tokens, ROWS),)](
            *inputs, d_out.contiguous(), *gradients, tokens,
            N=n, NP=triton.next_power_of_2(n * (n + 1)), D=hidden, BT=ROWS, BD=COLUMNS, enable_fp_fusion=True,
        )  # fmt: skip
        return gradients
