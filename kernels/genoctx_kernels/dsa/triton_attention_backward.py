"""Backward of the sparse attention, from its inputs and the forward's log-sum-exp; no float atomics.

Per query, with p = softmax_c(scale q . c), dp = do . c and delta = sum_c p dp (attention.py):

    d_q = sum_c ds c,  d_c = sum_h (ds q + p do),  ds = p (dp - delta) scale

Latents are shared by queries. So ``latent_kernel`` stores what each query of a slab adds to each of its
pools, and ``sum_kernel`` adds those up in the order of the queries: the selections are sorted by pool, and
one program owns a pool. Slabs follow one another, the last queries last.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.dsa.triton_attention import LAUNCH, LOG2E, tiles
from genoctx_kernels.dsa.triton_columns import gathered
from genoctx_kernels.triton_product import dot

SLAB_BYTES = 256 << 20  # of parts waiting to be summed: 4 MiB a query at 513 pools of 4 latents of 512
ENTRIES, SUM_TILE = 8, 512


@triton.jit
def _probs(dots, lse, seen, log2_scale):
    """exp(scale dots - lse), 0 where not seen; of a query that sees nothing, lse is -inf."""
    base = tl.where(lse == float("-inf"), 0.0, lse) * LOG2E
    return tl.where(seen, tl.exp2(dots * log2_scale - base), 0.0)


@triton.jit(do_not_specialize=["first"])
def delta_kernel(
    q_ptr, latents_ptr, pools_ptr, d_out_ptr, lse_ptr, share_ptr, delta_ptr, first, pools, log2_scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr,
    HT: tl.constexpr, CT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """delta and share = 1 / sum_c exp(scale q . c - lse), both [HT], of one query.

    share is 1 up to the rounding of lse and of the products. Where a softmax is sharp, dp - delta cancels, and
    is right only if the probabilities of this pass add up to one.
    """
    t = tl.program_id(0).to(tl.int64)
    pools_ptr += t * pools
    head = tl.program_id(1) * HT + tl.arange(0, HT)
    r = tl.arange(0, WIDE)
    at = head[:, None] * WIDTH + r[None, :]
    inside = (head < HEADS)[:, None] & (r < WIDTH)[None, :]
    q = tl.load(q_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
    d_out = tl.load(d_out_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
    none = tl.zeros([HT, CT], tl.float32)
    delta = tl.zeros([HT], tl.float32)
    total = tl.zeros([HT], tl.float32)
    for start in range(0, pools * POOL, CT):
        c, seen = gathered(latents_ptr, pools_ptr, start, pools, first + t, POOL, CT, WIDTH, WIDE)
        p = _probs(dot(q, tl.trans(c), none), lse[:, None], seen[None, :], log2_scale)
        delta += tl.sum(p * dot(d_out, tl.trans(c), none), 1)
        total += tl.sum(p, 1)
    share = tl.where(total > 0.0, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)
    tl.store(share_ptr + t * HEADS + head, share, mask=head < HEADS)
    tl.store(delta_ptr + t * HEADS + head, delta * share, mask=head < HEADS)


@triton.jit(do_not_specialize=["first"])
def query_kernel(
    q_ptr, latents_ptr, pools_ptr, d_out_ptr, lse_ptr, share_ptr, delta_ptr, d_q_ptr, first, pools, log2_scale, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr,
    HT: tl.constexpr, CT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """d_q [HT, WIDTH] of one query."""
    t = tl.program_id(0).to(tl.int64)
    pools_ptr += t * pools
    head = tl.program_id(1) * HT + tl.arange(0, HT)
    r = tl.arange(0, WIDE)
    at = head[:, None] * WIDTH + r[None, :]
    inside = (head < HEADS)[:, None] & (r < WIDTH)[None, :]
    q = tl.load(q_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
    d_out = tl.load(d_out_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
    share = tl.load(share_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
    delta = tl.load(delta_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
    none = tl.zeros([HT, CT], tl.float32)
    d_q = tl.zeros([HT, WIDE], tl.float32)
    for start in range(0, pools * POOL, CT):
        c, seen = gathered(latents_ptr, pools_ptr, start, pools, first + t, POOL, CT, WIDTH, WIDE)
        p = _probs(dot(q, tl.trans(c), none), lse[:, None], seen[None, :], log2_scale) * share[:, None]
        dp = dot(d_out, tl.trans(c), none)
        d_logits = p * (dp - delta[:, None]) * scale
        d_q = dot(d_logits.to(c.dtype), c, d_q)
    tl.store(d_q_ptr + t * (HEADS * WIDTH) + at, d_q.to(d_q_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first"])
def latent_kernel(
    q_ptr, latents_ptr, pools_ptr, d_out_ptr, lse_ptr, share_ptr, delta_ptr, parts_ptr, first, pools, log2_scale, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr,
    HT: tl.constexpr, CT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What one query adds to the latents of one tile of its columns, float32 [CT, WIDTH], over all heads."""
    t = tl.program_id(0).to(tl.int64)
    pools_ptr += t * pools
    start = tl.program_id(1) * CT
    r = tl.arange(0, WIDE)
    column = start + tl.arange(0, CT)
    c, seen = gathered(latents_ptr, pools_ptr, start, pools, first + t, POOL, CT, WIDTH, WIDE)
    none = tl.zeros([CT, HT], tl.float32)
    part = tl.zeros([CT, WIDE], tl.float32)
    for first_head in range(0, HEADS, HT):
        head = first_head + tl.arange(0, HT)
        at = head[:, None] * WIDTH + r[None, :]
        inside = (head < HEADS)[:, None] & (r < WIDTH)[None, :]
        q = tl.load(q_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
        d_out = tl.load(d_out_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
        lse = tl.load(lse_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
        share = tl.load(share_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
        delta = tl.load(delta_ptr + t * HEADS + head, mask=head < HEADS, other=0.0)
        p = _probs(dot(c, tl.trans(q), none), lse[None, :], seen[:, None], log2_scale) * share[None, :]
        dp = dot(c, tl.trans(d_out), none)
        d_logits = p * (dp - delta[None, :]) * scale
        part = dot(d_logits.to(c.dtype), q, part)
        part = dot(p.to(c.dtype), d_out, part)
    parts_ptr += t * pools * (POOL * WIDTH)
    part_at = column.to(tl.int64)[:, None] * WIDTH + r[None, :]
    tl.store(parts_ptr + part_at, part, mask=(column < pools * POOL)[:, None] & (r < WIDTH)[None, :])


@triton.jit(do_not_specialize=["begin"])
def sum_kernel(
    parts_ptr, pool_ptr, entry_ptr, end_ptr, d_pools_ptr, begin,
    ROW: tl.constexpr, RT: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Add to each pool what the queries of the slab give it; only the first of a pool's entries has work."""
    i = begin + tl.program_id(0).to(tl.int64)
    pool = tl.load(pool_ptr + i)
    previous = tl.load(pool_ptr + i - 1, mask=tl.program_id(0) > 0, other=-1)
    if (pool >= 0) & (pool != previous):
        r = tl.program_id(1) * RT + tl.arange(0, RT)
        end = tl.load(end_ptr + i)
        total = tl.zeros([RT], tl.float32)
        for start in range(i, end, ENTRIES):
            e = start + tl.arange(0, ENTRIES)
            row = tl.load(entry_ptr + e, mask=e < end, other=0) - begin
            part_at = row[:, None] * ROW + r[None, :]
            part = tl.load(parts_ptr + part_at, mask=(e < end)[:, None] & (r < ROW)[None, :], other=0.0)
            total += tl.sum(part, 0)
        at = pool.to(tl.int64) * ROW + r
        tl.store(d_pools_ptr + at, tl.load(d_pools_ptr + at, mask=r < ROW) + total, mask=r < ROW)


def _by_pool(pools_TK: Tensor, slab: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The entries (t, k), numbered t K + k, slab after slab, in a slab by pool, for a pool by query.

    Returns the pool of each (-1 last in its slab), its number, and where the entries of its pool end.
    """
    slabs = torch.arange(len(pools_TK), device=pools_TK.device) // slab
    key = slabs.unsqueeze(1) * (count + 1) + torch.where(pools_TK < 0, count, pools_TK)
    key, entry = key.flatten().sort(stable=True)
    return pools_TK.flatten()[entry], entry, torch.searchsorted(key, key, right=True)


def backward(
    q_THR: Tensor, latents_SR: Tensor, pools_TK: Tensor, lse_TH: Tensor, d_out_THR: Tensor,
    d_latents_SR: Tensor, first: int, pool: int, scale: float,
) -> Tensor:  # fmt: skip
    """d_q; adds the latents' gradient into ``d_latents_SR`` (float32, contiguous)."""
    q, latents, pools = q_THR.contiguous(), latents_SR.contiguous(), pools_TK.contiguous()
    d_out = d_out_THR.contiguous()
    (tokens, heads, width), kept = q.shape, pools.shape[1]
    constants = {"HEADS": heads, "WIDTH": width, "POOL": pool, **tiles(q.dtype, heads, width), **LAUNCH}
    grid = (tokens, triton.cdiv(heads, constants["HT"]))
    d_q, delta, share = torch.empty_like(q), torch.empty_like(lse_TH), torch.empty_like(lse_TH)
    if not tokens:
        return d_q
    log2_scale = scale * math.log2(math.e)
    delta_kernel[grid](
        q, latents, pools, d_out, lse_TH, share, delta, first, kept, log2_scale,
        **(constants | {"CT": 2 * constants["CT"]}),
    )  # fmt: skip
    query_kernel[grid](
        q, latents, pools, d_out, lse_TH, share, delta, d_q, first, kept, log2_scale, scale, **constants
    )  # fmt: skip

    slab = min(tokens, max(1, SLAB_BYTES // (kept * pool * width * 4)))
    parts = torch.empty(slab, kept * pool * width, dtype=torch.float32, device=q.device)
    pool_of, entry, end = _by_pool(pools, slab, len(latents) // pool)
    columns = triton.cdiv(kept * pool, constants["CT"])
    for start in range(0, tokens, slab):
        rows = slice(start, min(start + slab, tokens))
        size = rows.stop - start
        latent_kernel[(size, columns)](
            q[rows], latents, pools[rows], d_out[rows], lse_TH[rows], share[rows], delta[rows],
            parts, first + start, kept, log2_scale, scale, **(constants | {"num_stages": 1}),
        )  # fmt: skip
        sum_kernel[(size * kept, triton.cdiv(pool * width, SUM_TILE))](
            parts, pool_of, entry, end, d_latents_SR, start * kept,
            ROW=pool * width, RT=SUM_TILE, ENTRIES=ENTRIES, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return d_q
