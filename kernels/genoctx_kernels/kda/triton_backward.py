"""Block-local half of KDA's backward on a GPU, after the scans have made U, dU and the states' gradients.

The equations are those of kernels/README.md. Two details: rho is ``row`` there divided by beta, so that
dbeta_t = dR_t . V_t + k_t . rho_t also where beta is 0; and a and E need not be formed again.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

from genoctx_kernels.kda.triton_blocks import earlier_columns
from genoctx_kernels.kda.triton_tiles import (
    SUB,
    dot,
    head_offset,
    load_block,
    load_block_T,
    load_scalars,
    load_tokens,
    store_block,
    store_tokens,
    token_at,
)


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def values_back_kernel(
    v_ptr, beta_ptr, t_ptr, u_ptr, d_u_ptr, d_out_ptr, d_r_ptr, d_v_ptr, d_p_ptr, d_a_ptr, d_beta_ptr, T,
    first, blocks,
    H: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """dR, dV, dP, dA and the first half of dbeta of one block. Grid (B * H, blocks)."""
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    c = tl.arange(0, C)
    token = start + c
    beta = load_scalars(beta_ptr, row, token, token < T, H)
    d_p = tl.zeros((C, C), tl.float32)
    d_a = tl.zeros((C, C), tl.float32)
    d_beta = tl.zeros((C,), tl.float32)
    for v0 in range(0, V, BV):
        d = v0 + tl.arange(0, BV)
        d_r = dot(load_block_T(t_ptr, unit, c, c, C, C), load_block(d_u_ptr, unit, c, d, C, V), parts)
        store_block(d_r_ptr, unit, c, d, d_r, C, V)
        store_tokens(d_v_ptr, row, token, token < T, d, d_r * beta[:, None], H, V)
        d_beta += tl.sum(d_r * load_tokens(v_ptr, row, token, token < T, d, H, V), 1)
        u_T = load_block_T(u_ptr, unit, c, d, C, V)
        d_a -= dot(d_r, u_T, parts)
        d_p += dot(load_tokens(d_out_ptr, row, token, token < T, d, H, V), u_T, parts)
    store_block(d_p_ptr, unit, c, c, tl.where(c[:, None] >= c[None, :], d_p, 0.0), C, C)
    store_block(d_a_ptr, unit, c, c, tl.where(c[:, None] > c[None, :], d_a, 0.0), C, C)
    tl.store(d_beta_ptr + unit * C + c, d_beta)


@triton.jit(do_not_specialize=["T", "first", "blocks"])
def states_back_kernel(
    g_ptr, u_ptr, d_r_ptr, d_out_ptr, states_ptr, d_states_ptr, states_d_q_ptr, states_rho_ptr,
    states_col_ptr, d_end_ptr, T, first, blocks,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    parts: tl.constexpr,
):  # fmt: skip
    """What reaches q, k and g through the states: parts of dq, rho, col [C, K], and of every dg [K].

    Grid (B * H, blocks, K tiles).
    """
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    c, d = tl.arange(0, C), tl.program_id(2) * BK + tl.arange(0, BK)
    token = start + c
    d_q = tl.zeros((C, BK), tl.float32)
    rho = tl.zeros((C, BK), tl.float32)
    col = tl.zeros((C, BK), tl.float32)
    d_decay = tl.zeros((BK,), tl.float32)
    for v0 in range(0, V, BV):
        v = v0 + tl.arange(0, BV)
        state = load_block(states_ptr, unit, d, v, K, V)
        d_state = load_block(d_states_ptr, unit, d, v, K, V)
        d_decay += tl.sum(state * d_state, 1)
        state_T = tl.trans(state)
        d_q += dot(load_tokens(d_out_ptr, row, token, token < T, v, H, V), state_T, parts)
        rho -= dot(load_block(d_r_ptr, unit, c, v, C, V), state_T, parts)
        col += dot(load_block(u_ptr, unit, c, v, C, V), tl.trans(d_state), parts)
    g = load_tokens(g_ptr, row, token, token < T, d, H, K)
    grow = tl.exp(tl.cumsum(g, 0))
    store_block(states_d_q_ptr, unit, c, d, d_q * grow, C, K)
    store_block(states_rho_ptr, unit, c, d, rho * grow, C, K)
    g_next = load_tokens(g_ptr, row, token + 1, (c + 1 < C) & (token + 1 < T), d, H, K)
    col = col * tl.exp(tl.cumsum(g_next, 0, reverse=True))
    store_block(states_col_ptr, unit, c, d, col, C, K)
    tl.store(d_end_ptr + unit * K + d, tl.exp(tl.sum(g, 0)) * d_decay, mask=d < K)


@triton.jit
def _later_rows(
    q_ptr, k_ptr, g_ptr, beta_ptr, row, start, sub, d, T,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """q_t e^{G_t - G_border} and beta_t k_t e^{G_t - G_border} of the sub-blocks after ``sub``: [C, D] each.

    The border is the last token of ``sub``.
    """
    c = tl.arange(0, C)
    token = start + c
    later = (c >= (sub + 1) * SUB) & (token < T)
    shrink = tl.exp(tl.cumsum(load_tokens(g_ptr, row, token, later, d, H, K), 0))
    beta = load_scalars(beta_ptr, row, token, later, H)
    q = load_tokens(q_ptr, row, token, later, d, H, K)
    k = load_tokens(k_ptr, row, token, later, d, H, K)
    return q * shrink, k * beta[:, None] * shrink


@triton.jit
def _across(
    q_ptr, k_ptr, g_ptr, beta_ptr, d_p_ptr, d_a_ptr, unit, row, start, sub, d, T,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """q', k' / beta and k'' of the rows of ``sub``, from pairs with a token of another sub-block."""
    i, c = tl.arange(0, SUB), tl.arange(0, C)
    own = sub * SUB + i
    token = start + own
    earlier = earlier_columns(k_ptr, g_ptr, row, start, sub, d, T, H, K, C)
    grow = tl.exp(tl.cumsum(load_tokens(g_ptr, row, token, token < T, d, H, K), 0))
    d_q = dot(load_block(d_p_ptr, unit, own, c, C, C), earlier, parts) * grow
    rho = dot(load_block(d_a_ptr, unit, own, c, C, C), earlier, parts) * grow
    q_later, k_later = _later_rows(q_ptr, k_ptr, g_ptr, beta_ptr, row, start, sub, d, T, H, K, C)
    col = dot(load_block_T(d_p_ptr, unit, c, own, C, C), q_later, parts)
    col += dot(load_block_T(d_a_ptr, unit, c, own, C, C), k_later, parts)
    g_next = load_tokens(g_ptr, row, token + 1, (i + 1 < SUB) & (token + 1 < T), d, H, K)
    return d_q, rho, col * tl.exp(tl.cumsum(g_next, 0, reverse=True))


@triton.jit
def _within(
    q_ptr, k_ptr, g_ptr, beta_ptr, d_p_ptr, d_a_ptr, unit, row, start, sub, d, T,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """q', k' / beta and k'' of the rows of ``sub``, from pairs of two tokens inside it, by distance."""
    i = tl.arange(0, SUB)
    own = sub * SUB + i
    token = start + own
    wide, real = (d < K)[None, :], token < T
    q_at, k_at = token_at(q_ptr, row, token, d, H, K), token_at(k_ptr, row, token, d, H, K)
    g_at = token_at(g_ptr, row, token, d, H, K)
    own_at = (unit * C + own) * C + own
    d_q = tl.zeros((SUB, BK), tl.float32)
    rho = tl.zeros((SUB, BK), tl.float32)
    col = tl.zeros((SUB, BK), tl.float32)
    back_exponent = tl.zeros((SUB, BK), tl.float32)
    ahead_exponent = tl.zeros((SUB, BK), tl.float32)
    for step in range(1, SUB):
        shift = step * (H * K)
        back, ahead = (i >= step) & real, (i + step < SUB) & (token + step < T)
        back_wide, ahead_wide = back[:, None] & wide, ahead[:, None] & wide

        g_back = tl.load(g_at - shift + H * K, mask=back_wide, other=0.0)
        back_exponent += g_back.to(tl.float32)
        k_back = tl.load(k_at - shift, mask=back_wide, other=0.0).to(tl.float32) * tl.exp(back_exponent)
        d_q += tl.load(d_p_ptr + own_at - step, mask=back, other=0.0)[:, None] * k_back
        rho += tl.load(d_a_ptr + own_at - step, mask=back, other=0.0)[:, None] * k_back

        ahead_exponent += tl.load(g_at + shift, mask=ahead_wide, other=0.0).to(tl.float32)
        d_p = tl.load(d_p_ptr + own_at + step * C, mask=ahead, other=0.0)
        d_a = tl.load(d_a_ptr + own_at + step * C, mask=ahead, other=0.0)
        d_a *= tl.load(beta_ptr + row + (token + step) * H, mask=ahead, other=0.0).to(tl.float32)
        q_ahead = tl.load(q_at + shift, mask=ahead_wide, other=0.0).to(tl.float32)
        k_ahead = tl.load(k_at + shift, mask=ahead_wide, other=0.0).to(tl.float32)
        col += (d_p[:, None] * q_ahead + d_a[:, None] * k_ahead) * tl.exp(ahead_exponent)
    return d_q, rho, col


@triton.jit(do_not_specialize=["T", "first", "blocks", "units"])
def scores_back_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, d_p_ptr, d_a_ptr, states_d_q_ptr, states_rho_ptr, states_col_ptr, d_q_ptr,
    d_k_ptr, d_cum_ptr, d_beta_ptr, T, first, blocks, units,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """dq, dk, dG and, for each K tile, the second half of dbeta, for the 16 rows of one sub-block.

    dG leaves out what :func:`gates_back_kernel` sums the other way, and the pairs of a token with itself,
    which have no decay and cancel: with gates at -5 their rounding would exceed all the rest.
    Grid (B * H, blocks * C/16, K tiles). ``d_beta_ptr`` is [1 + K tiles, units, C]; row 0 is the first half.
    """
    m, n = tl.program_id(0).to(tl.int64), (tl.program_id(1) // (C // SUB)).to(tl.int64)
    sub, tile = tl.program_id(1) % (C // SUB), tl.program_id(2)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    d, own = tile * BK + tl.arange(0, BK), sub * SUB + tl.arange(0, SUB)
    token = start + own
    d_q, rho, col = _across(
        q_ptr, k_ptr, g_ptr, beta_ptr, d_p_ptr, d_a_ptr, unit, row, start, sub, d, T, H, K, C, parts
    )
    near_q, near_rho, near_col = _within(
        q_ptr, k_ptr, g_ptr, beta_ptr, d_p_ptr, d_a_ptr, unit, row, start, sub, d, T, H, K, C, BK
    )
    from_states = load_block(states_col_ptr, unit, own, d, C, K)
    d_q += near_q + load_block(states_d_q_ptr, unit, own, d, C, K)
    rho += near_rho + load_block(states_rho_ptr, unit, own, d, C, K)
    col += near_col
    q = load_tokens(q_ptr, row, token, token < T, d, H, K)
    k = load_tokens(k_ptr, row, token, token < T, d, H, K)
    own_row = rho * load_scalars(beta_ptr, row, token, token < T, H)[:, None]
    store_block(d_cum_ptr, unit, own, d, q * d_q + k * (own_row - col), C, K)
    d_own = tl.load(d_p_ptr + (unit * C + own) * C + own)[:, None]
    store_tokens(d_q_ptr, row, token, token < T, d, d_q + d_own * k, H, K)
    store_tokens(d_k_ptr, row, token, token < T, d, own_row + col + d_own * q + from_states, H, K)
    at = ((tile + 1).to(tl.int64) * units + unit) * C + own
    tl.store(d_beta_ptr + at, tl.sum(k * rho, 1))


@triton.jit(do_not_specialize=["T", "first", "blocks", "units"])
def gates_back_kernel(
    k_ptr, states_col_ptr, d_cum_ptr, d_end_ptr, d_halves_ptr, d_g_ptr, d_beta_ptr, T, first, blocks, units,
    H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dg and, from its parts, dbeta. Grid (B * H, blocks).

    dg_t sums dG from t to the end of the block, and k_s col_s of the leaving state over the tokens s before t.
    The latter is the README's sum over all tokens minus the one from t on, without the cancellation.
    """
    m, n = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit, row, start = m * blocks + n, head_offset(m, T, H), first.to(tl.int64) + n * C
    c = tl.arange(0, C)
    token = start + c
    d_beta = tl.load(d_halves_ptr + unit * C + c)
    for k0 in range(0, K, BK):
        d = k0 + tl.arange(0, BK)
        d_end = tl.load(d_end_ptr + unit * K + d, mask=d < K, other=0.0)
        d_g = tl.cumsum(load_block(d_cum_ptr, unit, c, d, C, K), 0, reverse=True) + d_end[None, :]
        k_before = load_tokens(k_ptr, row, token - 1, (c > 0) & (token < T), d, H, K)
        d_g += tl.cumsum(k_before * load_block(states_col_ptr, unit, c - 1, d, C, K), 0)
        store_tokens(d_g_ptr, row, token, token < T, d, d_g, H, K)
        d_beta += tl.load(d_halves_ptr + ((k0 // BK + 1) * units.to(tl.int64) + unit) * C + c)
    tl.store(d_beta_ptr + row + token * H, d_beta, mask=token < T)
