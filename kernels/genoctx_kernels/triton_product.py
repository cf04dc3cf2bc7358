"""Matrix products of tiles for Triton kernels: float32 sums, in the order of the inner index.

``multiply`` is the inner loop of every kernel that multiplies matrices; the kernels say where the operands lie.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Tile(NamedTuple):
    """Rows, columns and inner steps of a tile of a product, and the launch that suits it."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


TENSOR_CORES = Tile(128, 128, 64, warps=8, stages=3)
FLOAT32 = Tile(64, 64, 16, warps=8, stages=2)
"""Products of float32 are exact float32 multiply-adds, without tensor cores."""


def tile_of(dtype: torch.dtype) -> Tile:
    """The tile for operands of ``dtype``."""
    return FLOAT32 if dtype == torch.float32 else TENSOR_CORES


@triton.jit
def dot(a, b, acc):
    """``acc + a @ b`` in float32.

    Operands of two dtypes are multiplied in float32, and so is everything in the interpreter, which
    multiplies bfloat16 wrongly.
    """
    widen: tl.constexpr = INTERPRETED or a.dtype != b.dtype
    if widen:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def multiply(a_at, b_at, a_step, b_step, row_ok, column_ok, inner, acc, BK: tl.constexpr):
    """``acc`` [BM, BN] plus A B, where A has ``inner`` columns and B as many rows, BK at a time.

    ``a_at`` [BM, BK] and ``b_at`` [BK, BN] point at the first BK; a step is the distance of neighbours along
    the inner index. Rows and columns outside, and what lies beyond ``inner``, count as zero.
    """
    k = tl.arange(0, BK)
    for start in range(0, inner, BK):
        inside = k < inner - start
        a = tl.load(a_at, mask=row_ok[:, None] & inside[None, :], other=0.0)
        b = tl.load(b_at, mask=inside[:, None] & column_ok[None, :], other=0.0)
        acc = dot(a, b, acc)
        a_at += BK * a_step
        b_at += BK * b_step
    return acc


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, rows, columns, inner, a_row, a_inner, b_inner, b_column, c_row,
    ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C = A B, or C += A B; rows of C are contiguous. The other arguments are strides."""
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK).to(tl.int64)
    row_ok, column_ok = m < rows, n < columns
    c_at = c_ptr + m[:, None] * c_row + n[None, :]
    inside = row_ok[:, None] & column_ok[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    if ADD:
        acc += tl.load(c_at, mask=inside, other=0.0)
    acc = multiply(
        a_ptr + m[:, None] * a_row + k[None, :] * a_inner, b_ptr + k[:, None] * b_inner + n[None, :] * b_column,
        a_inner, b_inner, row_ok, column_ok, inner, acc, BK,
    )  # fmt: skip
    tl.store(c_at, acc, mask=inside)


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, add: bool = False) -> None:
    """``c = a @ b``, or ``c += a @ b``, for ``a`` [M, K], ``b`` [K, N] of any strides and ``c`` [M, N] with rows.

    Adding continues the sum in ``c``: a product added in pieces along K is, for a float32 ``c`` and pieces of
    whole inner steps, bit for bit the product at once.
    """
    tile = tile_of(a.dtype)
    rows, columns = c.shape
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))
    product_kernel[grid](
        a, b, c, rows, columns, a.shape[1], *a.stride(), *b.stride(), c.stride(0),
        ADD=add, BM=tile.rows, BN=tile.columns, BK=tile.inner,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
