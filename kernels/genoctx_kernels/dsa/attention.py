"""Absorbed attention of one sequence over selected pools of latents and the tail.

Keys and values are the same latents for all heads: logits = q~ . c / sqrt(qk width), o~ = sum a c.
Queries go in tiles, so the gathered latents of a tile are all that exists at once. Gradients of the
latents are added, pool by pool, into a buffer that the caller owns (the window's d-latent buffer in
a streamed sweep); the gradient of this chunk's own latents is read back from it. Plain torch here; on a
GPU the same in triton_attention.py and triton_attention_backward.py.

Letters: T queries, H heads, R latent width, S tokens in the buffer, P tokens a pool, K pools kept,
L = (K + 1) * P gathered tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.numerics import accumulator

GATHER_BYTES = 8 << 20  # of latents gathered at a time


def with_tail(ids_TK: Tensor, first: int, pool: int) -> Tensor:
    """Selected pools plus the query's open pool, int64 [T, K+1]; -1 where the tail is empty."""
    positions = torch.arange(first, first + len(ids_TK), device=ids_TK.device)
    open_pool = (positions + 1) // pool
    tail = torch.where((positions + 1) % pool > 0, open_pool, -1)
    return torch.cat((ids_TK.long(), tail.unsqueeze(1)), 1)


class _Tile:
    """The gathered latents of some queries and which of them count."""

    def __init__(self, pools_SPR: Tensor, ids_TK: Tensor, first: int, pool: int) -> None:
        tokens, width = len(ids_TK), pools_SPR.shape[1] // pool
        self.rows = ids_TK.clamp_min(0)
        gathered = pools_SPR.index_select(0, self.rows.flatten())
        self.latents_TLR = gathered.view(tokens, -1, width)
        positions = torch.arange(first, first + tokens, device=ids_TK.device)
        last_slot = positions.unsqueeze(1) - self.rows * pool  # slots beyond the query are future tokens
        slots = torch.arange(pool, device=ids_TK.device)
        seen = (slots <= last_slot.unsqueeze(-1)) & (ids_TK >= 0).unsqueeze(-1)
        self.hidden_TL = ~seen.flatten(1)

    def probs(self, q_THR: Tensor, scale: float) -> Tensor:
        logits = torch.bmm(q_THR, self.latents_TLR.mT).to(accumulator(q_THR.dtype)).mul_(scale)
        return logits.masked_fill_(self.hidden_TL.unsqueeze(1), float("-inf")).softmax(-1)


def query_tile(ids_TK: Tensor, pools_SPR: Tensor) -> int:
    """Queries per tile so that their gathered latents stay within GATHER_BYTES."""
    per_query = ids_TK.shape[1] * pools_SPR.shape[1] * pools_SPR.element_size()
    return max(1, GATHER_BYTES // per_query)


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THR: Tensor,
        own_TR: Tensor,
        buffer_SR: Tensor,
        ids_TK: Tensor,
        first: int,
        pool: int,
        scale: float,
        d_buffer_SR: Tensor | None,
    ) -> Tensor:
        ctx.buffer, ctx.d_buffer = buffer_SR, d_buffer_SR
        ctx.shape = (first, pool, scale)
        lse_TH: Tensor | None = None
        if choose("dsa_attention", q_THR, buffer_SR, unsupported=_unsupported(q_THR, buffer_SR)).triton:
            from genoctx_kernels.dsa.triton_attention import forward

            ids_TK = ids_TK.to(torch.int32)
            out, lse_TH = forward(q_THR, buffer_SR, ids_TK, first, pool, scale)
        else:
            out = _forward(q_THR, _as_pools(buffer_SR, pool), ids_TK, first, pool, scale)
        ctx.save_for_backward(q_THR, ids_TK, lse_TH)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q_THR, ids_TK, lse_TH = ctx.saved_tensors
        first, pool, scale = ctx.shape
        buffer, d_buffer = ctx.buffer, ctx.d_buffer
        if d_buffer is None:
            d_buffer = torch.zeros_like(buffer, dtype=accumulator(buffer.dtype))
        if lse_TH is not None:
            from genoctx_kernels.dsa.triton_attention_backward import backward

            d_q = backward(q_THR, buffer, ids_TK, lse_TH, d_out, d_buffer, first, pool, scale)
        else:
            pools, d_pools = _as_pools(buffer, pool), _as_pools(d_buffer, pool)
            d_q = _backward(q_THR, d_out, pools, d_pools, ids_TK, first, pool, scale)
        d_own = d_buffer[first : first + len(q_THR)].to(q_THR.dtype, copy=True)
        return d_q, d_own, None, None, None, None, None, None


def _unsupported(q_THR: Tensor, buffer_SR: Tensor) -> str:
    """Why the Triton kernels cannot take these; empty where they can."""
    dtype, width = q_THR.dtype, q_THR.shape[-1]
    limit = 128 if dtype == torch.float32 else 512
    if dtype != buffer_SR.dtype:
        return f"queries are {dtype} and latents {buffer_SR.dtype}"
    return f"latents of {dtype} are wider than {limit}" if width > limit else ""


def _forward(q: Tensor, pools_SPR: Tensor, ids_TK: Tensor, first: int, pool: int, scale: float) -> Tensor:
    out = torch.empty_like(q)
    step = query_tile(ids_TK, pools_SPR)
    for start in range(0, len(q), step):
        rows = slice(start, start + step)
        tile = _Tile(pools_SPR, ids_TK[rows], first + start, pool)
        torch.bmm(tile.probs(q[rows], scale).to(q.dtype), tile.latents_TLR, out=out[rows])
    return out


def _backward(
    q: Tensor,
    d_out: Tensor,
    pools: Tensor,
    d_pools: Tensor,
    ids_TK: Tensor,
    first: int,
    pool: int,
    scale: float,
) -> Tensor:
    """dq; adds the latents' gradient into ``d_pools``."""
    d_q = torch.empty_like(q)
    step = query_tile(ids_TK, pools)
    for start in range(0, len(q), step):
        rows = slice(start, start + step)
        tile = _Tile(pools, ids_TK[rows], first + start, pool)
        d_q[rows] = _tile_backward(tile, q[rows], d_out[rows], scale, d_pools)
    return d_q


def _tile_backward(tile: _Tile, q: Tensor, d_out: Tensor, scale: float, d_pools: Tensor) -> Tensor:
    """dq of a tile; adds the latents' gradient into ``d_pools``.

    l' = a (do . c - sum a do . c); dq = l' c scale; dc += l' q scale + a do (spec section 2.7).
    """
    probs = tile.probs(q, scale)
    d_probs = torch.bmm(d_out, tile.latents_TLR.mT).to(probs.dtype)
    inner = (d_probs * probs).sum(-1, keepdim=True)
    d_logits = d_probs.sub_(inner).mul_(probs).mul_(scale)
    d_q = torch.bmm(d_logits.to(q.dtype), tile.latents_TLR)
    weights = torch.cat((d_logits, probs), 1)
    d_latents = torch.bmm(weights.mT, torch.cat((q, d_out), 1).to(weights.dtype))
    # an unused id points at pool 0 with weight exactly 0
    d_pools.index_add_(0, tile.rows.flatten(), d_latents.view(tile.rows.numel(), -1).to(d_pools.dtype))
    return d_q


def _as_pools(buffer_SR: Tensor, pool: int) -> Tensor:
    return buffer_SR.view(-1, pool * buffer_SR.shape[-1])


def sparse_attention(
    q_THR: Tensor,
    own_TR: Tensor,
    buffer_SR: Tensor,
    ids_TK: Tensor,
    *,
    first: int,
    pool: int,
    scale: float,
    d_buffer_SR: Tensor | None = None,
) -> Tensor:
    """Attention of queries at positions first, first+1, ... over selected pools and tail: [T, H, R].

    ``buffer_SR`` (S a multiple of ``pool``, no undefined numbers) holds the latents of every token
    up to and including this chunk's; ``own_TR`` are this chunk's latents once more, as the place
    where autograd continues. In backward the gradient of *all* latents is added into
    ``d_buffer_SR`` (float32, float64 for float64), and the rows of this chunk, with whatever later
    chunks left there, are returned as the gradient of ``own_TR``. Without a buffer the chunk must be
    the first (``first == 0``), or gradients of older latents would be lost: ValueError.
    """
    if d_buffer_SR is None and first > 0 and torch.is_grad_enabled() and own_TR.requires_grad:
        raise ValueError("a later chunk needs d_buffer_SR, or the gradient of older latents is lost")
    ids = with_tail(ids_TK, first, pool)
    return _SparseAttention.apply(q_THR, own_TR, buffer_SR, ids, first, pool, scale, d_buffer_SR)


@torch.no_grad()
def pool_mass(
    q_THR: Tensor, buffer_SR: Tensor, ids_TK: Tensor, first: int, pool: int, scale: float
) -> Tensor:
    """Attention probability per selected pool, summed over heads: [T, K] (the tail left out)."""
    ids = with_tail(ids_TK, first, pool)
    tile = _Tile(_as_pools(buffer_SR, pool), ids, first, pool)
    return tile.probs(q_THR, scale).sum(1).unflatten(-1, (-1, pool)).sum(-1)[:, :-1]
