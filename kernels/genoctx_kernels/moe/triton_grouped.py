"""Grouped products of routed experts in Triton: a tile of rows has one expert, so it multiplies one matrix.

Letters: R rows sorted by expert and S tiles of them (plan.py), E experts, K inner, N columns.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.moe.plan import Plan
from genoctx_kernels.triton_product import FLOAT32, Tile, dot, multiply

TENSOR_CORES = Tile(64, 128, 64, warps=4, stages=3)
"""Few rows: experts of few tokens are padded to them."""


def tile_of(dtype: torch.dtype) -> Tile:
    """The tile for operands of ``dtype``; its rows are those of a tile of the plan."""
    return FLOAT32 if dtype == torch.float32 else TENSOR_CORES


@triton.jit
def rows_kernel(
    a_ptr, b_ptr, c_ptr, token_ptr, expert_ptr, columns, inner, b_expert, b_inner, b_column,
    E: tl.constexpr, GATHER: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C [R, N] = A_r B_e, one tile; GATHER: row r of A is that of its token. Padding becomes zero."""
    tile = tl.program_id(0).to(tl.int64)
    e = tl.load(expert_ptr + tile).to(tl.int64)
    if e < E:
        r = tile * BR + tl.arange(0, BR)
        n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK).to(tl.int64)
        token = tl.load(token_ptr + r).to(tl.int64)
        source = token if GATHER else r
        acc = multiply(
            a_ptr + source[:, None] * inner + k[None, :],
            b_ptr + e * b_expert + k[:, None] * b_inner + n[None, :] * b_column,
            1, b_inner, token >= 0, n < columns, inner, tl.zeros([BR, BN], tl.float32), BK,
        )  # fmt: skip
        tl.store(c_ptr + r[:, None] * columns + n[None, :], acc, mask=(n < columns)[None, :])


@triton.jit
def outer_kernel(
    a_ptr, b_ptr, c_ptr, token_ptr, weight_ptr, first_ptr, count_ptr, rows, columns,
    GATHER_A: tl.constexpr, GATHER_B: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C_e [rows, columns] = sum over the rows r of e of A_r^T B_r, first to last; zero without rows.

    A gathered A is also multiplied by the row's weight.
    """
    e = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    first = tl.load(first_ptr + e)
    count = tl.load(count_ptr + e).to(tl.int32)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, count, BK):
        k = start + tl.arange(0, BK)
        there = k < count
        r = first + k
        token = tl.load(token_ptr + r, mask=there, other=0).to(tl.int64)
        a_row = token if GATHER_A else r
        b_row = token if GATHER_B else r
        a = tl.load(
            a_ptr + a_row[None, :] * rows + m[:, None], mask=there[None, :] & (m < rows)[:, None], other=0.0
        )
        if GATHER_A:
            weight = tl.load(weight_ptr + r, mask=there, other=0.0)
            a = (a.to(tl.float32) * weight[None, :]).to(a.dtype)
        b = tl.load(
            b_ptr + b_row[:, None] * columns + n[None, :],
            mask=there[:, None] & (n < columns)[None, :], other=0.0,
        )  # fmt: skip
        acc = dot(a, b, acc)
    at = c_ptr + e * rows * columns + m[:, None] * columns + n[None, :]
    tl.store(at, acc, mask=(m < rows)[:, None] & (n < columns)[None, :])


def grouped_rows(a: Tensor, b_EKN: Tensor, plan: Plan, *, gather: bool) -> Tensor:
    """C [R, N] = A_r B_e for ``a`` [R, K], or [M, K] with one row a token; ``b_EKN`` of any strides.

    Rows of tiles that do not exist are left as they come.
    """
    tile, (experts, inner, columns) = tile_of(a.dtype), b_EKN.shape
    c = torch.empty(len(plan.token_R), columns, dtype=a.dtype, device=a.device)
    rows_kernel[(len(plan.expert_S), triton.cdiv(columns, tile.columns))](
        a, b_EKN, c, plan.token_R, plan.expert_S, columns, inner, *b_EKN.stride(),
        E=experts, GATHER=gather, BR=tile.rows, BN=tile.columns, BK=tile.inner,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return c


def grouped_outer(
    a: Tensor, b: Tensor, plan: Plan, weight_R: Tensor, *, gather_a: bool, gather_b: bool
) -> Tensor:
    """C [E, columns of a, columns of b] = sum over an expert's rows of A_r^T B_r.

    What is gathered has a row for each token instead; a gathered ``a`` is also multiplied by the row's weight.
    """
    tile = tile_of(a.dtype)
    rows, columns = a.shape[1], b.shape[1]
    c = torch.empty(len(plan.count_E), rows, columns, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns), len(plan.count_E))
    outer_kernel[grid](
        a, b, c, plan.token_R, weight_R, plan.first_E, plan.count_E, rows, columns,
        GATHER_A=gather_a, GATHER_B=gather_b, BM=tile.rows, BN=tile.columns, BK=tile.inner,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return c
