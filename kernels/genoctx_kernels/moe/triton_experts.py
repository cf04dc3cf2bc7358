"""``routed_experts`` in Triton: grouped products, and sums over a token's choices in the order of the choices.

With r the row of a pair (plan.py), t its token, e its expert, s its weight:

    [gate; up]_r = W_gate_up,e x_t    h_r = swiglu    out_t = sum_r s_r W_down,e h_r
    d_h'_r = W_down,e^T d_out_t       d_s_r = d_h'_r . h_r       d_h_r = s_r d_h'_r
    d_W_down,e = sum_r s_r d_out_t h_r^T    d_W_gate_up,e = sum_r d[gate; up]_r x_t^T
    d_x_t = sum_r W_gate_up,e^T d[gate; up]_r

Adapters add B_e A_e to a W_e; they get gradients like any two products in a row, and W_e is left alone.

Letters: M tokens, A choices a token, D hidden, I expert width, J = 2 I, R rows.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.moe.plan import make_plan
from genoctx_kernels.moe.triton_grouped import grouped_outer, grouped_rows, tile_of
from genoctx_kernels.swiglu.triton_swiglu import clamped, d_clamped

COLUMNS = 512


@triton.jit
def swiglu_kernel(gate_up_ptr, token_ptr, h_ptr, width, limit, BI: tl.constexpr):
    """h of one stretch of one row; padding is skipped."""
    r = tl.program_id(0).to(tl.int64)
    if tl.load(token_ptr + r) >= 0:
        i = tl.program_id(1) * BI + tl.arange(0, BI)
        _, _, low, mid = clamped(gate_up_ptr, r, i, i < width, width, limit)
        tl.store(h_ptr + r * width + i, low * tl.sigmoid(low) * mid, mask=i < width)


@triton.jit
def d_swiglu_kernel(
    gate_up_ptr, token_ptr, weight_ptr, d_h_ptr, d_ptr, d_weight_ptr, width, limit, BI: tl.constexpr
):
    """d of gate and up and of the weight of one row, from d_h'; padding is skipped."""
    r = tl.program_id(0).to(tl.int64)
    if tl.load(token_ptr + r) >= 0:
        weight = tl.load(weight_ptr + r)
        d_weight = tl.zeros([BI], tl.float32)
        for start in range(0, width, BI):
            i = start + tl.arange(0, BI)
            gate, up, low, mid = clamped(gate_up_ptr, r, i, i < width, width, limit)
            d_h = tl.load(d_h_ptr + r * width + i, mask=i < width, other=0.0).to(tl.float32)
            d_weight += d_h * low * tl.sigmoid(low) * mid
            d_gate, d_up = d_clamped(gate, up, low, mid, d_h * weight, limit)
            at = d_ptr + r * 2 * width + i
            tl.store(at, d_gate, mask=i < width)
            tl.store(at + width, d_up, mask=i < width)
        tl.store(d_weight_ptr + r, tl.sum(d_weight, 0))


@triton.jit
def combine_kernel(
    y_ptr, row_ptr, weight_ptr, out_ptr, D: tl.constexpr, A: tl.constexpr, WEIGH: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """out [M, D]: the sum of a token's A rows, first choice first; WEIGH: each times its weight [M, A]."""
    m = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    out = tl.zeros([BD], tl.float32)
    for a in tl.static_range(A):
        y = tl.load(y_ptr + tl.load(row_ptr + m * A + a) * D + d, mask=d < D, other=0.0).to(tl.float32)
        if WEIGH:
            y *= tl.load(weight_ptr + m * A + a).to(tl.float32)
        out += y
    tl.store(out_ptr + m * D + d, out, mask=d < D)


def combine(y_RD: Tensor, row_MA: Tensor, weights_MA: Tensor | None) -> Tensor:
    """Sum over each token's rows, weighted or not: [M, D]."""
    (tokens, choices), hidden = row_MA.shape, y_RD.shape[1]
    out = torch.empty(tokens, hidden, dtype=y_RD.dtype, device=y_RD.device)
    combine_kernel[(tokens, triton.cdiv(hidden, COLUMNS))](
        y_RD, row_MA, weights_MA, out,
        D=hidden, A=choices, WEIGH=weights_MA is not None, BD=COLUMNS, enable_fp_fusion=True,
    )  # fmt: skip
    return out


class RoutedExperts(torch.autograd.Function):
    """``op.routed_experts``; saves its inputs, the plan, and gate and up of every pair.

    ``a_in``, ``b_in`` adapt gate and up, ``a_out``, ``b_out`` down; None where there is no adapter.
    """

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, experts_MA: Tensor, weights_MA: Tensor, gate_up_EJD: Tensor, down_EDI: Tensor,
        limit: float, a_in: Tensor | None, b_in: Tensor | None, a_out: Tensor | None, b_out: Tensor | None,
    ) -> Tensor:  # fmt: skip
        x, weights = x_MD.contiguous(), weights_MA.contiguous()
        plan = make_plan(experts_MA, len(gate_up_EJD), tile_of(x.dtype).rows)
        gate_up = grouped_rows(x, gate_up_EJD.mT, plan, gather=True)
        if a_in is not None and b_in is not None:
            gate_up += grouped_rows(grouped_rows(x, a_in.mT, plan, gather=True), b_in.mT, plan, gather=False)
        ctx.save_for_backward(x, weights, gate_up_EJD, down_EDI, gate_up, a_in, b_in, a_out, b_out)
        ctx.plan, ctx.limit = plan, limit
        h = _swiglu(gate_up, plan.token_R, limit)
        y = grouped_rows(h, down_EDI.mT, plan, gather=False)
        if a_out is not None and b_out is not None:
            y += grouped_rows(grouped_rows(h, a_out.mT, plan, gather=False), b_out.mT, plan, gather=False)
        return combine(y, plan.row_MA, weights)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, gate_up_EJD, down_EDI, gate_up, a_in, b_in, a_out, b_out = ctx.saved_tensors
        plan, limit, d_out = ctx.plan, ctx.limit, d_out.contiguous()
        rows, width = len(gate_up), gate_up.shape[1] // 2
        weight_R = torch.empty(rows, dtype=torch.float32, device=x.device)
        weight_R[plan.row_MA.flatten()] = weights.flatten().float()
        h = _swiglu(gate_up, plan.token_R, limit) if ctx.needs_input_grad[4] or a_out is not None else None
        d_h = grouped_rows(d_out, down_EDI, plan, gather=True)
        d_a_out, d_b_out = None, None
        if a_out is not None and h is not None:
            low, d_low = (
                grouped_rows(h, a_out.mT, plan, gather=False),
                grouped_rows(d_out, b_out, plan, gather=True),
            )
            d_h += grouped_rows(d_low, a_out, plan, gather=False)
            d_low = (d_low * weight_R.unsqueeze(1)).to(d_low.dtype)
            d_a_out = grouped_outer(d_low, h, plan, weight_R, gather_a=False, gather_b=False)
            d_b_out = grouped_outer(d_out, low, plan, weight_R, gather_a=True, gather_b=False)
        d_gate_up, d_weight_R = torch.empty_like(gate_up), torch.empty_like(weight_R)
        d_swiglu_kernel[(rows,)](
            gate_up, plan.token_R, weight_R, d_h, d_gate_up, d_weight_R, width, limit,
            BI=COLUMNS, enable_fp_fusion=True,
        )  # fmt: skip
        d_gate_ups, d_downs = None, None
        if ctx.needs_input_grad[3]:
            d_gate_ups = grouped_outer(d_gate_up, x, plan, weight_R, gather_a=False, gather_b=True)
        if ctx.needs_input_grad[4] and h is not None:
            d_downs = grouped_outer(d_out, h, plan, weight_R, gather_a=True, gather_b=False)
        d_pairs = grouped_rows(d_gate_up, gate_up_EJD, plan, gather=False)
        d_a_in, d_b_in = None, None
        if a_in is not None:
            low, d_low = (
                grouped_rows(x, a_in.mT, plan, gather=True),
                grouped_rows(d_gate_up, b_in, plan, gather=False),
            )
            d_pairs += grouped_rows(d_low, a_in, plan, gather=False)
            d_a_in = grouped_outer(d_low, x, plan, weight_R, gather_a=False, gather_b=True)
            d_b_in = grouped_outer(d_gate_up, low, plan, weight_R, gather_a=False, gather_b=False)
        d_x = combine(d_pairs, plan.row_MA, None)
        d_weights = d_weight_R[plan.row_MA].to(weights.dtype)
        return d_x, None, d_weights, d_gate_ups, d_downs, None, d_a_in, d_b_in, d_a_out, d_b_out


def _swiglu(gate_up_RJ: Tensor, token_R: Tensor, limit: float) -> Tensor:
    rows, width = len(gate_up_RJ), gate_up_RJ.shape[1] // 2
    h = torch.empty(rows, width, dtype=gate_up_RJ.dtype, device=gate_up_RJ.device)
    swiglu_kernel[(rows, triton.cdiv(width, COLUMNS))](
        gate_up_RJ, token_R, h, width, limit, BI=COLUMNS, enable_fp_fusion=True
    )
    return h
