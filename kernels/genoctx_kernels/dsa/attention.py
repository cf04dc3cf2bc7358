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

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose, machine_reason, shared_memory
from genoctx_kernels.numerics import accumulator

SHARED_BYTES = 200 << 10
"""What the Triton kernels need where latents are wider than 128: the backward takes 193.5 KiB at 512 in bfloat16."""

GATHER_BYTES = 2 << 20  # of latents gathered at a time: they are read several times, from the cache


def with_tail(ids_TK: Tensor, first: int, pool: int) -> Tensor:
    """Selected pools plus the query's open pool, int64 [T, K+1]; -1 where the tail is empty."""
    positions = torch.arange(first, first + len(ids_TK), device=ids_TK.device)
    open_pool = (positions + 1) // pool
    tail = torch.where((positions + 1) % pool > 0, open_pool, -1)
    return torch.cat((ids_TK.long(), tail.unsqueeze(1)), 1)


class _Selection:
    """Rows to gather for every query, and which of the gathered tokens do not count.

    Selected pools are complete: where every id is used, only the open pool, gathered last, has anything to hide.
    """

    def __init__(self, ids_TK: Tensor, first: int, pool: int) -> None:
        self.rows_TK = ids_TK.clamp_min(0)
        sure = ids_TK.shape[1] - 1 if bool((ids_TK[:, :-1] >= 0).all()) else 0
        self.sure_L = sure * pool
        positions = torch.arange(first, first + len(ids_TK), device=ids_TK.device)
        last_slot = positions.unsqueeze(1) - self.rows_TK[:, sure:] * pool  # slots beyond are future tokens
        slots = torch.arange(pool, device=ids_TK.device)
        seen = (slots <= last_slot.unsqueeze(-1)) & (ids_TK[:, sure:] >= 0).unsqueeze(-1)
        self.hidden_T1L = ~seen.flatten(1).unsqueeze(1)
        """Of the columns from ``sure_L`` on."""

    def latents(self, pools_SPR: Tensor, queries: slice, width: int, space: Tensor | None = None) -> Tensor:
        """The gathered latents [T, L, R] of some queries, in the first rows of ``space`` if there is one."""
        rows = self.rows_TK[queries]
        out = None if space is None else space[: rows.numel()]
        return torch.index_select(pools_SPR, 0, rows.flatten(), out=out).view(len(rows), -1, width)

    def softmax(self, logits_THL: Tensor, queries: slice, *, in_place: bool = False) -> Tensor:
        """Over the tokens that count; overwrites the logits of the others."""
        logits_THL[..., self.sure_L :].masked_fill_(self.hidden_T1L[queries], float("-inf"))
        return torch.softmax(logits_THL, -1, out=logits_THL if in_place else None)


class _Space:
    """Memory of one tile, the same for all: what is read soon after it was written stays in the cache."""

    def __init__(self, q_THR: Tensor, ids_TK: Tensor, pools_SPR: Tensor, *, sides: int) -> None:
        queries, kept = min(_step(ids_TK, pools_SPR), len(ids_TK)), ids_TK.shape[1]
        _, heads, width = q_THR.shape
        self.latents = pools_SPR.new_empty(queries * kept, pools_SPR.shape[1])
        self.products = q_THR.new_empty(queries, sides * heads, kept * (pools_SPR.shape[1] // width))


def _products(x_TXR: Tensor, latents_TLR: Tensor, scale: float, space: Tensor | None = None) -> Tensor:
    """x . c * scale, [T, X, L], in the first rows of ``space`` if nothing has to be widened."""
    wide = accumulator(x_TXR.dtype)
    if space is None or space.dtype != wide:
        return torch.bmm(x_TXR, latents_TLR.mT).to(wide).mul_(scale)
    out = space[: len(x_TXR)]
    return torch.baddbmm(out, x_TXR, latents_TLR.mT, beta=0, alpha=scale, out=out)


def _step(ids_TK: Tensor, pools_SPR: Tensor) -> int:
    """Queries whose gathered latents stay within GATHER_BYTES, at least one."""
    per_query = ids_TK.shape[1] * pools_SPR.shape[1] * pools_SPR.element_size()
    return int(max(1, GATHER_BYTES // per_query))


def _tiles(ids_TK: Tensor, pools_SPR: Tensor) -> Iterator[slice]:
    step = _step(ids_TK, pools_SPR)
    return (slice(start, start + step) for start in range(0, len(ids_TK), step))


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
    if width > limit:
        return f"latents of {dtype} are wider than {limit}"
    if width > 128 and q_THR.is_cuda and not machine_reason(q_THR.device.index or 0):
        there = shared_memory(q_THR.device.index or 0)
        if there < SHARED_BYTES:
            return f"latents wider than 128 need {SHARED_BYTES >> 10} KiB of shared memory, this GPU has {there >> 10}"
    return ""


def _forward(q: Tensor, pools_SPR: Tensor, ids_TK: Tensor, first: int, pool: int, scale: float) -> Tensor:
    out = q.new_empty(q.shape)  # not with q's strides: a batched product goes query by query into such memory
    selection, space = _Selection(ids_TK, first, pool), _Space(q, ids_TK, pools_SPR, sides=1)
    for tile in _tiles(ids_TK, pools_SPR):
        latents = selection.latents(pools_SPR, tile, q.shape[-1], space.latents)
        logits = _products(q[tile], latents, scale, space.products)
        probs = selection.softmax(logits, tile, in_place=True)
        torch.bmm(probs.to(q.dtype), latents, out=out[tile])
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
    """dq; adds the latents' gradient into ``d_pools``.

    l' = a (do . c - sum a do . c); dq = l' c scale; dc += l' q scale + a do (spec section 2.7).
    Queries and output gradients meet the latents in one product, and make one product of dc.
    """
    d_q, heads = q.new_empty(q.shape), q.shape[1]
    selection, space = _Selection(ids_TK, first, pool), _Space(q, ids_TK, pools, sides=2)
    for tile in _tiles(ids_TK, pools):
        latents = selection.latents(pools, tile, q.shape[-1], space.latents)
        sides = torch.cat((q[tile], d_out[tile]), 1)
        products = _products(sides, latents, scale, space.products)
        logits, d_probs = products.split(heads, 1)
        probs = selection.softmax(logits, tile)
        d_logits = torch.ops.aten._softmax_backward_data(d_probs, probs, -1, probs.dtype)
        torch.bmm(d_logits.to(q.dtype), latents, out=d_q[tile])
        # d_probs carried the scale, which belongs to d_logits alone
        weights = torch.cat((d_logits, probs), 1, out=products)
        # the latents of this tile are no longer needed: their gradient takes their place
        place = latents if latents.dtype == weights.dtype else None
        d_latents = torch.bmm(weights.mT, sides.to(weights.dtype), out=place).to(d_pools.dtype)
        # an unused id points at pool 0 with weight exactly 0
        d_pools.index_add_(0, selection.rows_TK[tile].flatten(), d_latents.view(-1, pools.shape[1]))
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
    ids, everything = with_tail(ids_TK, first, pool), slice(None)
    selection = _Selection(ids, first, pool)
    latents = selection.latents(_as_pools(buffer_SR, pool), everything, q_THR.shape[-1])
    probs = selection.softmax(_products(q_THR, latents, scale), everything)
    return probs.sum(1).unflatten(-1, (-1, pool)).sum(-1)[:, :-1]
