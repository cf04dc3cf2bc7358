"""The passes of KDA that go from block to block on a GPU, and what is read off the states afterwards.

A program of a scan owns one (batch, head) and a tile of value columns, which never mix: it keeps its
[K, BV] piece of the state in registers and walks the blocks in order. Letters as in chunked.py.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

from genoctx_kernels.kda.triton_tiles import (
    dot,
    head_offset,
    load_block,
    load_block_T,
    load_tokens,
    store_block,
    store_tokens,
)


@triton.jit(do_not_specialize=["blocks"])
def scan_kernel(
    w_ptr, k_out_ptr, decay_ptr, state_ptr, u_ptr, states_ptr, last_ptr, blocks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, PK: tl.constexpr, BV: tl.constexpr, parts:
    tl.constexpr,
):  # fmt: skip
    """U in place of T Diag(beta) V, the state entering each block, the last state. Grid (B * H, V tiles)."""
    m = tl.program_id(0).to(tl.int64)
    v, d, c = tl.program_id(1) * BV + tl.arange(0, BV), tl.arange(0, PK), tl.arange(0, C)
    state = load_block(state_ptr, m, d, v, K, V)
    for n in range(blocks):
        unit = m * blocks + n
        store_block(states_ptr, unit, d, v, state, K, V)
        u = load_block(u_ptr, unit, c, v, C, V)
        u -= dot(load_block(w_ptr, unit, c, d, C, K), state, parts)
        store_block(u_ptr, unit, c, v, u, C, V)
        decay = tl.load(decay_ptr + unit * K + d, mask=d < K, other=0.0)
        state = state * decay[:, None] + dot(load_block_T(k_out_ptr, unit, c, d, C, K), u, parts)
    store_block(last_ptr, m, d, v, state, K, V)


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def outputs_kernel(
    q_in_ptr, p_ptr, u_ptr, states_ptr, out_ptr, T, first, blocks,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    parts: tl.constexpr,
):  # fmt: skip
    """O = Q+ S0 + P U of one block. Grid (B * H, blocks, V tiles)."""
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    c, v = tl.arange(0, C), tl.program_id(2) * BV + tl.arange(0, BV)
    out = dot(load_block(p_ptr, unit, c, c, C, C), load_block(u_ptr, unit, c, v, C, V), parts)
    for d0 in range(0, K, BK):
        d = d0 + tl.arange(0, BK)
        q_in = load_block(q_in_ptr, unit, c, d, C, K)
        out += dot(q_in, load_block(states_ptr, unit, d, v, K, V), parts)
    store_tokens(out_ptr, row, start + c, start + c < T, v, out, H, V)


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def scan_back_kernel(
    w_ptr, q_in_ptr, k_out_ptr, p_ptr, decay_ptr, d_out_ptr, d_last_ptr, d_u_ptr, d_states_ptr, d_first_ptr,
    T, first, blocks,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, PK: tl.constexpr, BV: tl.constexpr,
    parts: tl.constexpr,
):  # fmt: skip
    """Last block to first: dU, the gradient of the state leaving each block, and of the first entering one.

    Grid (B * H, V tiles).
    """
    m = tl.program_id(0).to(tl.int64)
    row = head_offset(m, T, H)
    v, d, c = tl.program_id(1) * BV + tl.arange(0, BV), tl.arange(0, PK), tl.arange(0, C)
    d_state = load_block(d_last_ptr, m, d, v, K, V)
    for back in range(blocks):
        n = blocks - 1 - back
        unit, token = m * blocks + n, first.to(tl.int64) + n * C + c
        store_block(d_states_ptr, unit, d, v, d_state, K, V)
        d_out = load_tokens(d_out_ptr, row, token, token < T, v, H, V)
        d_u = dot(load_block_T(p_ptr, unit, c, c, C, C), d_out, parts)
        d_u += dot(load_block(k_out_ptr, unit, c, d, C, K), d_state, parts)
        store_block(d_u_ptr, unit, c, v, d_u, C, V)
        decay = tl.load(decay_ptr + unit * K + d, mask=d < K, other=0.0)
        d_state = d_state * decay[:, None] + dot(load_block_T(q_in_ptr, unit, c, d, C, K), d_out, parts)
        d_state -= dot(load_block_T(w_ptr, unit, c, d, C, K), d_u, parts)
    store_block(d_first_ptr, m, d, v, d_state, K, V)
