"""``short_conv`` in Triton: one kernel forward, one backward that also sums the weight's gradient.

Both see ``past``, the W-1 rows of the tail followed by the T rows of x, without ever building it:

    pre_t = sum_i w_i past_(t+i)    d_past_u = sum_i w_i d_pre_(u-i)    d_w_i = sum_t d_pre_t past_(t+i)

Letters: B rows, T tokens, C channels, W taps; u counts rows of ``past``, t rows of the output.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS, CHANNELS = 32, 64
"""A tile of the forward pass."""
BACKWARD_TOKENS = 16
"""Tokens of a tile of the backward pass, which holds more of them at once."""
STEPS = 64
"""Tiles of tokens that one backward program walks: there is one sum of the weight's gradient for each."""


@triton.jit
def _load_past(x_ptr, tail_ptr, u, c, tokens, channels, x_stride, W: tl.constexpr):
    """Rows ``u`` of past in float32, zero outside: [len(u), len(c)]."""
    inside = (c < channels)[None, :]
    from_tail = tl.load(
        tail_ptr + u[:, None] * channels + c[None, :],
        mask=((u >= 0) & (u < W - 1))[:, None] & inside, other=0.0,
    ).to(tl.float32)  # fmt: skip
    t = u - (W - 1)
    from_x = tl.load(
        x_ptr + t[:, None] * x_stride + c[None, :],
        mask=((t >= 0) & (t < tokens))[:, None] & inside, other=0.0,
    ).to(tl.float32)  # fmt: skip
    return from_tail + from_x


@triton.jit
def _tap(w_ptr, i, c, channels, W: tl.constexpr):
    """Tap ``i`` of the weight in float32: [1, len(c)]."""
    return tl.load(w_ptr + c * W + i, mask=c < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _taps(x_ptr, tail_ptr, w_ptr, t, c, tokens, channels, x_stride, W: tl.constexpr):
    """The convolution before SiLU at the outputs ``t``."""
    pre = _load_past(x_ptr, tail_ptr, t + W - 1, c, tokens, channels, x_stride, W)
    pre *= _tap(w_ptr, W - 1, c, channels, W)
    for i in tl.static_range(W - 1):
        past = _load_past(x_ptr, tail_ptr, t + i, c, tokens, channels, x_stride, W)
        pre += past * _tap(w_ptr, i, c, channels, W)
    return pre


@triton.jit(do_not_specialize=["tokens"])
def forward_kernel(
    x_ptr, tail_ptr, w_ptr, y_ptr, tokens, channels, x_batch_stride, x_stride,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One tile of outputs."""
    row = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    c = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)
    x_ptr += row * x_batch_stride
    tail_ptr += row * (W - 1) * channels
    pre = _taps(x_ptr, tail_ptr, w_ptr, t, c, tokens, channels, x_stride, W)
    y_at = y_ptr + row * tokens * channels + t[:, None] * channels + c[None, :]
    tl.store(y_at, pre * tl.sigmoid(pre), mask=(t < tokens)[:, None] & (c < channels)[None, :])


@triton.jit
def _d_pre(x_ptr, tail_ptr, w_ptr, dy_ptr, t, c, tokens, channels, x_stride, dy_stride, W: tl.constexpr):
    """Gradient before SiLU at the outputs ``t``, zero where there is no such output."""
    there = ((t >= 0) & (t < tokens))[:, None] & (c < channels)[None, :]
    dy = tl.load(dy_ptr + t[:, None] * dy_stride + c[None, :], mask=there, other=0.0).to(tl.float32)
    pre = _taps(x_ptr, tail_ptr, w_ptr, t, c, tokens, channels, x_stride, W)
    gate = tl.sigmoid(pre)
    return dy * gate * (1 + pre * (1 - gate))


@triton.jit(do_not_specialize=["tokens"])
def backward_kernel(
    x_ptr, tail_ptr, w_ptr, dy_ptr, dx_ptr, dtail_ptr, dw_ptr,
    tokens, channels, x_batch_stride, x_stride, dy_batch_stride, dy_stride,
    W: tl.constexpr, WIDE: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Gradients of STEPS tiles of ``past``, and their share of the weight's: dw [B, parts, W, C] float32."""
    row = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * (BT * STEPS)
    c = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)
    x_ptr += row * x_batch_stride
    tail_ptr += row * (W - 1) * channels
    dy_ptr += row * dy_batch_stride
    tap = tl.arange(0, WIDE)[:, None]
    d_w = tl.zeros([WIDE, BC], tl.float32)
    for step in range(STEPS):
        u = first + step * BT + tl.arange(0, BT)
        d_pre = _d_pre(x_ptr, tail_ptr, w_ptr, dy_ptr, u, c, tokens, channels, x_stride, dy_stride, W)
        d_past = d_pre * _tap(w_ptr, 0, c, channels, W)
        for i in tl.static_range(W):  # u runs over every output once
            past = _load_past(x_ptr, tail_ptr, u + i, c, tokens, channels, x_stride, W)
            d_w += tl.where(tap == i, tl.sum(d_pre * past, 0)[None, :], 0.0)
        for i in range(1, W):  # not unrolled: every turn loads W tiles
            d_pre = _d_pre(
                x_ptr, tail_ptr, w_ptr, dy_ptr, u - i, c, tokens, channels, x_stride, dy_stride, W
            )  # fmt: skip
            d_past += d_pre * _tap(w_ptr, i, c, channels, W)
        inside = (c < channels)[None, :]
        t = u - (W - 1)
        tl.store(
            dtail_ptr + row * (W - 1) * channels + u[:, None] * channels + c[None, :], d_past,
            mask=(u < W - 1)[:, None] & inside,
        )  # fmt: skip
        tl.store(
            dx_ptr + row * tokens * channels + t[:, None] * channels + c[None, :], d_past,
            mask=((t >= 0) & (t < tokens))[:, None] & inside,
        )  # fmt: skip
    part = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(
        dw_ptr + (part * W + tap) * channels + c[None, :], d_w, mask=(tap < W) & (c < channels)[None, :]
    )  # fmt: skip


def _unit_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class ShortConv(torch.autograd.Function):
    """``op.short_conv`` without the next tail; saves only its inputs."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_CW: Tensor, tail_BWC: Tensor) -> Tensor:
        x, weight, tail = _unit_channels(x_BTC), weight_CW.contiguous(), tail_BWC.contiguous()
        ctx.save_for_backward(x, weight, tail)
        rows, tokens, channels = x.shape
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(tokens, TOKENS), triton.cdiv(channels, CHANNELS), rows)
        forward_kernel[grid](
            x, tail, weight, y, tokens, channels, x.stride(0), x.stride(1),
            W=weight.shape[1], BT=TOKENS, BC=CHANNELS, enable_fp_fusion=True,
        )  # fmt: skip
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, tail = ctx.saved_tensors
        d_y = _unit_channels(d_y)
        rows, tokens, channels = x.shape
        width = weight.shape[1]
        d_x, d_tail = torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(tail)
        parts = triton.cdiv(tokens + width - 1, BACKWARD_TOKENS * STEPS)
        d_weight = torch.empty(rows, parts, width, channels, dtype=torch.float32, device=x.device)
        backward_kernel[(parts, triton.cdiv(channels, CHANNELS), rows)](
            x, tail, weight, d_y, d_x, d_tail, d_weight,
            tokens, channels, x.stride(0), x.stride(1), d_y.stride(0), d_y.stride(1),
            W=width, WIDE=triton.next_power_of_2(width), BT=BACKWARD_TOKENS, BC=CHANNELS, STEPS=STEPS,
            enable_fp_fusion=True,
        )  # fmt: skip
        return d_x, d_weight.sum((0, 1)).T.to(weight.dtype), d_tail
