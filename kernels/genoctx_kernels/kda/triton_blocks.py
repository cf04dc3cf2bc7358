"""Block-local work of KDA on a GPU: everything about a block that does not depend on the entering state.

The letters are those of chunked.py, which computes the same in plain torch: a and P are the decayed
products of keys with keys and of queries with keys, T = (I + Diag(beta) a)^{-1}. One program handles the
rows of one sub-block (:func:`scores_kernel`) or one block; all blocks and heads run side by side.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

from genoctx_kernels.kda.triton_tiles import (
    SUB,
    dot,
    head_offset,
    load_block,
    load_scalars,
    load_tokens,
    store_block,
    token_at,
)


@triton.jit
def earlier_columns(k_ptr, g_ptr, row, start, sub, d, T, H: tl.constexpr, K: tl.constexpr, C: tl.constexpr):
    """k_s e^{G_border - G_s} for every s of the sub-blocks before ``sub``, zero elsewhere: [C, D].

    The border is the last token before sub-block ``sub``; the exponent sums g over (s, border].
    """
    c = tl.arange(0, C)
    token = start + c
    k = load_tokens(k_ptr, row, token, (c < sub * SUB) & (token < T), d, H, K)
    inside = (c + 1 < sub * SUB) & (token + 1 < T)
    g_next = load_tokens(g_ptr, row, token + 1, inside, d, H, K)
    return k * tl.exp(tl.cumsum(g_next, 0, reverse=True))


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def scores_kernel(
    q_ptr, k_ptr, g_ptr, a_ptr, p_ptr, T, first, blocks,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """a (strictly lower) and P (lower) for the 16 rows of one sub-block. Grid (B * H, blocks * C/16)."""
    m, n = tl.program_id(0).to(tl.int64), (tl.program_id(1) // (C // SUB)).to(tl.int64)
    sub = tl.program_id(1) % (C // SUB)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    i, c = tl.arange(0, SUB), tl.arange(0, C)
    own = sub * SUB + i
    token = start + own
    distance = own[:, None] - c[None, :]
    a = tl.zeros((SUB, C), tl.float32)
    p = tl.zeros((SUB, C), tl.float32)
    for d0 in range(0, K, BK):
        d = d0 + tl.arange(0, BK)
        q = load_tokens(q_ptr, row, token, token < T, d, H, K)
        k = load_tokens(k_ptr, row, token, token < T, d, H, K)
        g = load_tokens(g_ptr, row, token, token < T, d, H, K)
        grow = tl.exp(tl.cumsum(g, 0))
        columns = tl.trans(earlier_columns(k_ptr, g_ptr, row, start, sub, d, T, H, K, C))
        a += dot(k * grow, columns, parts)
        p += dot(q * grow, columns, parts)
        # pairs inside the sub-block, by distance: the exponent grows by one g for each token further back,
        # and a token before the sub-block counts as zero
        p += tl.where(distance == 0, tl.sum(q * k, 1)[:, None], 0.0)
        k_at, g_at = token_at(k_ptr, row, token, d, H, K), token_at(g_ptr, row, token, d, H, K)
        exponent = g
        for back in range(1, SUB):
            inside = ((i >= back) & (token < T))[:, None] & (d < K)[None, :]
            k_back = tl.load(k_at - back * (H * K), mask=inside, other=0.0).to(tl.float32) * tl.exp(exponent)
            p += tl.where(distance == back, tl.sum(q * k_back, 1)[:, None], 0.0)
            a += tl.where(distance == back, tl.sum(k * k_back, 1)[:, None], 0.0)
            exponent += tl.load(g_at - back * (H * K), mask=inside, other=0.0).to(tl.float32)
    store_block(a_ptr, unit, own, c, a, C, C)
    store_block(p_ptr, unit, own, c, p, C, C)


@triton.jit
def _invert_squares(a_ptr, beta_ptr, unit, row, start, T, H: tl.constexpr, C: tl.constexpr):
    """Inverses of the 16 x 16 squares on the diagonal of I + Diag(beta) a, row by row: [C/16, 16, 16]."""
    s = tl.arange(0, C // SUB)[:, None, None]
    i = tl.arange(0, SUB)[None, :, None]
    j = tl.arange(0, SUB)[None, None, :]
    token = start + s * SUB + i
    beta = tl.load(beta_ptr + row + token * H, mask=token < T, other=0.0).to(tl.float32)
    lower = tl.load(a_ptr + (unit * C + s * SUB + i) * C + s * SUB + j) * beta
    inverse = tl.where((i == j) & (s >= 0), 1.0, 0.0)
    for r in range(1, SUB):
        factors = tl.sum(tl.where(i == r, lower, 0.0), 1)
        sums = tl.sum(factors[:, :, None] * inverse, 1)
        inverse -= tl.where(i == r, sums[:, None, :], 0.0)
    return inverse


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def solve_kernel(
    a_ptr, beta_ptr, t_ptr, T, first, blocks,
    H: tl.constexpr, C: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """T = (I + Diag(beta) a)^{-1}, [C, C] a block. Grid (B * H, blocks).

    Two inverted squares X (above) and Y (below) on the diagonal with the square A in the corner between them
    make one of twice the width: its own corner is -Y A X.
    """
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    squares = _invert_squares(a_ptr, beta_ptr, unit, row, start, T, H, C)
    r = tl.arange(0, C)
    spread = tl.broadcast_to(tl.reshape(squares, (C, SUB))[:, None, :], (C, C // SUB, SUB))
    on_diagonal = (r // SUB)[:, None] == (r // SUB)[None, :]
    inverse = tl.where(on_diagonal, tl.reshape(spread, (C, C)), 0.0)
    beta = load_scalars(beta_ptr, row, start + r, start + r < T, H)
    lower = load_block(a_ptr, unit, r, r, C, C) * beta[:, None]
    for level in tl.static_range(2):
        half = SUB * 2**level
        if half < C:
            x, y = (r // half)[None, :], (r // half)[:, None]
            corners = tl.where((y == x + 1) & (x % 2 == 0), lower, 0.0)
            inverse -= dot(dot(inverse, corners, parts), inverse, parts)
    store_block(t_ptr, unit, r, r, inverse, C, C)


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def keys_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, t_ptr, q_in_ptr, k_out_ptr, w_ptr, decay_ptr, T, first, blocks,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """Q+, K-, W = T Diag(beta) K+ [C, K] and e^{G_C} [K] of one block. Grid (B * H, blocks, K tiles)."""
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    c, d = tl.arange(0, C), tl.program_id(2) * BK + tl.arange(0, BK)
    token = start + c
    k = load_tokens(k_ptr, row, token, token < T, d, H, K)
    g = load_tokens(g_ptr, row, token, token < T, d, H, K)
    grow = tl.exp(tl.cumsum(g, 0))
    beta = load_scalars(beta_ptr, row, token, token < T, H)
    inverse = load_block(t_ptr, unit, c, c, C, C)
    store_block(w_ptr, unit, c, d, dot(inverse, k * grow * beta[:, None], parts), C, K)
    q = load_tokens(q_ptr, row, token, token < T, d, H, K)
    store_block(q_in_ptr, unit, c, d, q * grow, C, K)
    g_next = load_tokens(g_ptr, row, token + 1, (c + 1 < C) & (token + 1 < T), d, H, K)
    store_block(k_out_ptr, unit, c, d, k * tl.exp(tl.cumsum(g_next, 0, reverse=True)), C, K)
    tl.store(decay_ptr + unit * K + d, tl.exp(tl.sum(g, 0)), mask=d < K)


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def values_kernel(
    v_ptr, beta_ptr, t_ptr, u_ptr, T, first, blocks,
    H: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """T Diag(beta) V [C, V]: what U would be from a zero state. Grid (B * H, blocks, V tiles)."""
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    c, d = tl.arange(0, C), tl.program_id(2) * BV + tl.arange(0, BV)
    token = start + c
    v = load_tokens(v_ptr, row, token, token < T, d, H, V)
    beta = load_scalars(beta_ptr, row, token, token < T, H)
    inverse = load_block(t_ptr, unit, c, c, C, C)
    store_block(u_ptr, unit, c, d, dot(inverse, v * beta[:, None], parts), C, V)
