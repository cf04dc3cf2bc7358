"""``clamped_swiglu`` in Triton: one pass each way, float32 inside, rounded once.

Letters: M rows, I width of the result; a row of the input is gate then up.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024
"""Columns of one row that a program handles."""


@triton.jit
def clamped(gate_up_ptr, row, column, inside, width, limit):
    """Gate and up before and after their clamps, in float32. Comparisons let NaN through, min and max may not."""
    at = gate_up_ptr + row * 2 * width + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    low = tl.where(gate > limit, limit, gate)
    mid = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate, up, low, mid


@triton.jit
def d_clamped(gate, up, low, mid, d_y, limit):
    """d of gate and up from what :func:`clamped` gave; zero where a clamp was active."""
    share = tl.sigmoid(low)
    d_gate = d_y * mid * share * (1 + low * (1 - share))
    d_up = d_y * low * share
    return tl.where(gate > limit, 0.0, d_gate), tl.where((up > limit) | (up < -limit), 0.0, d_up)


@triton.jit
def forward_kernel(gate_up_ptr, y_ptr, width, limit, COLUMNS: tl.constexpr):
    """y = silu(low) mid for one stretch of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    _, _, low, mid = clamped(gate_up_ptr, row, column, inside, width, limit)
    tl.store(y_ptr + row * width + column, low * tl.sigmoid(low) * mid, mask=inside)


@triton.jit
def backward_kernel(gate_up_ptr, d_y_ptr, d_ptr, width, limit, COLUMNS: tl.constexpr):
    """d of gate and up for one stretch of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate, up, low, mid = clamped(gate_up_ptr, row, column, inside, width, limit)
    d_y = tl.load(d_y_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    d_gate, d_up = d_clamped(gate, up, low, mid, d_y, limit)
    at = d_ptr + row * 2 * width + column
    tl.store(at, d_gate, mask=inside)
    tl.store(at + width, d_up, mask=inside)


class ClampedSwiglu(torch.autograd.Function):
    """``op.clamped_swiglu``; saves only its input."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, limit: float) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        ctx.limit = limit
        width = gate_up.shape[-1] // 2
        y = torch.empty(*gate_up.shape[:-1], width, dtype=gate_up.dtype, device=gate_up.device)
        forward_kernel[_grid(gate_up)](gate_up, y, width, limit, COLUMNS=COLUMNS, enable_fp_fusion=True)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        d, width = torch.empty_like(gate_up), gate_up.shape[-1] // 2
        backward_kernel[_grid(gate_up)](
            gate_up, d_y.contiguous(), d, width, ctx.limit, COLUMNS=COLUMNS, enable_fp_fusion=True
        )
        return d, None


def _grid(gate_up: Tensor) -> tuple[int, int]:
    """Rows on the first axis, the only one that may pass 65,535."""
    return gate_up.shape[:-1].numel(), triton.cdiv(gate_up.shape[-1] // 2, COLUMNS)
