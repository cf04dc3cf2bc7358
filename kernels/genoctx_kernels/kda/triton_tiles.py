"""Device functions shared by the Triton kernels of KDA: addresses, products, decays.

Every decay is the exponential of a *sum* of log-decays g <= 0, made by adding, never by subtracting two
running sums: no exponent can be positive, and none depends on a token after the row it scales.

Pieces of tensors: ``tokens`` are [B, T, H, D], ``blocks`` are workspaces [unit, C, D] where a unit is one
block of C tokens of one (batch, head). Offsets are int64: 1M tokens x 64 heads x 128 passes 2^31.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

from genoctx_kernels.triton_product import INTERPRETED

SUB = tl.constexpr(16)
"""Tokens of a sub-block: pairs inside one are decayed pair by pair, pairs across at the border."""


@triton.jit
def dot(a, b, parts: tl.constexpr):
    """``a @ b`` of float32 tiles, summed in float32.

    ``ieee``: float32 products. ``split``: each operand as the sum of two bfloat16, and three tensor-core
    products; the part left out is 2^-16 of the result, far below the rounding of bfloat16 or float16
    inputs.
    """
    if parts == "ieee":
        return tl.dot(a, b, input_precision="ieee")
    a_high, a_low = _halve(a)
    b_high, b_low = _halve(b)
    small = tl.dot(a_high, b_low, tl.dot(a_low, b_high))
    return tl.dot(a_high, b_high, small)


@triton.jit
def _halve(x):
    """``x`` as high + low, both bfloat16; for the interpreter, which cannot multiply those, in float32."""
    high = x.to(tl.bfloat16)
    low = (x - high.to(tl.float32)).to(tl.bfloat16)
    if INTERPRETED:
        return high.to(tl.float32), low.to(tl.float32)
    return high, low


@triton.jit
def token_at(ptr, row, token_R, d_D, H: tl.constexpr, D: tl.constexpr):
    """Where rows [R, D] of one head lie; ``row`` is the (batch, head)'s :func:`head_offset`.

    The next token is ``H * D`` further.
    """
    return ptr + row * D + token_R[:, None] * (H * D) + d_D[None, :]


@triton.jit
def load_tokens(ptr, row, token_R, ok_R, d_D, H: tl.constexpr, D: tl.constexpr):
    """Rows [R, D] of one head in float32; zero where ``ok_R`` is false and past width ``D``."""
    at = token_at(ptr, row, token_R, d_D, H, D)
    return tl.load(at, mask=ok_R[:, None] & (d_D < D)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_tokens(ptr, row, token_R, ok_R, d_D, x, H: tl.constexpr, D: tl.constexpr):
    """Inverse of :func:`load_tokens`, in the dtype of ``ptr``; writes only where ``ok_R``."""
    tl.store(token_at(ptr, row, token_R, d_D, H, D), x, mask=ok_R[:, None] & (d_D < D)[None, :])


@triton.jit
def load_scalars(ptr, row, token_R, ok_R, H: tl.constexpr):
    """[R] of a [B, T, H] tensor, float32; zero where ``ok_R`` is false."""
    return tl.load(ptr + row + token_R * H, mask=ok_R, other=0.0).to(tl.float32)


@triton.jit
def head_offset(m, T, H: tl.constexpr):
    """Offset of (batch, token 0, head) in a [B, T, H] tensor, for m = batch * H + head in int64."""
    return (m // H) * T * H + m % H


@triton.jit
def load_block(ptr, unit, row_R, d_D, C: tl.constexpr, D: tl.constexpr):
    """Rows [R, D] of a workspace [unit, C, D]; zero for rows outside 0 .. C and past width ``D``."""
    at = (unit * C + row_R)[:, None] * D + d_D[None, :]
    inside = (row_R >= 0) & (row_R < C)
    return tl.load(ptr + at, mask=(d_D < D)[None, :] & inside[:, None], other=0.0)


@triton.jit
def load_block_T(ptr, unit, row_R, d_D, C: tl.constexpr, D: tl.constexpr):
    """The transpose of :func:`load_block`, [D, R]."""
    at = (unit * C + row_R)[None, :] * D + d_D[:, None]
    return tl.load(ptr + at, mask=(d_D < D)[:, None] & (row_R < C)[None, :], other=0.0)


@triton.jit
def store_block(ptr, unit, row_R, d_D, x, C: tl.constexpr, D: tl.constexpr):
    """Inverse of :func:`load_block`."""
    at = (unit * C + row_R)[:, None] * D + d_D[None, :]
    tl.store(ptr + at, x, mask=(d_D < D)[None, :] & (row_R < C)[:, None])
