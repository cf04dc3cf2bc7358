"""Selection of pools in one pass over the pooled keys; the score matrix is never stored.

A program owns a tile of queries and walks the tiles of pools from first to last. A score above the
query's bar goes to the end of the query's waiting list, so lists are in ascending pool order. Before a
list could overflow it is cut down to its best ``top`` entries, in place and in order, and the bar rises
to the worst one kept: ties with it come later, hence lose. Cutting finds the worst kept score exactly,
bit by bit, on integers in the order of the scores; nothing is approximate and nothing depends on timing.
Scores are as in indexer.py: float32, heads summed from first to last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.triton_product import dot

QUERY_TILE = 32
POOL_TILE = 128
WIDTH_TILE = 32  # of the index width multiplied at a time; plain multiply-add keeps its operands in registers
ROWS_CUT = 2  # waiting lists cut down together
QUERY_TILES_AT_ONCE = 512  # bounds the waiting lists: 8 KiB a query at 512 pools kept, 128 MiB
NUM_WARPS, NUM_STAGES = 8, 2
LOWEST = tl.constexpr(-(2**31))


@triton.jit
def _ordered(score):
    """Integers in the order of the scores. There is no -0 among them: they are sums that start at 0."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score_tile(
    q_ptr, w_ptr, keys_ptr, query, real, pool, exists, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, QT: tl.constexpr, PT: tl.constexpr, WT: tl.constexpr,
):  # fmt: skip
    """sum_i w_i relu((q_i scale) . key), float32 [QT, PT], of rows and columns counted from the pointers."""
    scores = tl.zeros([QT, PT], tl.float32)
    for head in range(HEADS):
        w = tl.load(w_ptr + query * HEADS + head, mask=real, other=0.0).to(tl.float32)
        dots = tl.zeros([QT, PT], tl.float32)
        for start in range(0, WIDTH, WT):
            d = start + tl.arange(0, WT)
            q_at = (query * HEADS + head)[:, None] * WIDTH + d[None, :]
            q = tl.load(q_ptr + q_at, mask=real[:, None] & (d < WIDTH)[None, :], other=0.0)
            k_at = pool[None, :] * WIDTH + d[:, None]
            k = tl.load(keys_ptr + k_at, mask=exists[None, :] & (d < WIDTH)[:, None], other=0.0)
            dots = dot(q.to(tl.float32) * scale, k, dots)
        scores += w[:, None] * tl.maximum(dots, 0.0)
    return scores


@triton.jit
def _cut(keys_ptr, ids_ptr, count_ptr, bar_ptr, row, TOP: tl.constexpr, ROOM: tl.constexpr):
    """Keep the best ``TOP`` entries of the lists of ``row``, in order; raise the bar of those that had more."""
    slot = tl.arange(0, ROOM)
    held = slot[None, :] < tl.load(count_ptr + row)[:, None]
    at = row[:, None] * ROOM + slot[None, :]
    key = tl.load(keys_ptr + at, mask=held, other=LOWEST)
    ids = tl.load(ids_ptr + at, mask=held, other=-1)
    # the largest integer that at least TOP keys reach is the TOP-th best; LOWEST where there are fewer
    worst = tl.where(_reaching(key, tl.zeros_like(row)) >= TOP, 0, LOWEST)
    for bit in range(31):
        higher = worst + (1 << (30 - bit))
        worst = tl.where(_reaching(key, higher) >= TOP, higher, worst)
    above = (key > worst[:, None]) & held
    equal = (key == worst[:, None]) & held
    left = TOP - tl.sum(above.to(tl.int32), 1)
    kept = above | (equal & (tl.cumsum(equal.to(tl.int32), 1) <= left[:, None]))
    place = row[:, None] * ROOM + tl.cumsum(kept.to(tl.int32), 1) - 1
    tl.debug_barrier()  # everything is read before anything is overwritten
    tl.store(keys_ptr + place, key, mask=kept)
    tl.store(ids_ptr + place, ids, mask=kept)
    tl.store(count_ptr + row, tl.sum(kept.to(tl.int32), 1))
    tl.store(bar_ptr + row, worst)


@triton.jit
def _reaching(key, bound):
    """How many entries of each row are at least ``bound``."""
    return tl.sum((key >= bound[:, None]).to(tl.int32), 1)


@triton.jit(do_not_specialize=["first", "tokens"])
def select_kernel(
    q_ptr, w_ptr, keys_ptr, out_ptr, list_keys_ptr, list_ids_ptr, count_ptr, bar_ptr,
    first, tokens, scale,
    POOL: tl.constexpr, TOP: tl.constexpr, TOP_WIDE: tl.constexpr, ROOM: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, QT: tl.constexpr, PT: tl.constexpr, WT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tile of QT queries. Pointers move to the tile in 64 bits; offsets inside it fit in 32."""
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # those that see most pools start first
    q_ptr += tile * QT * HEADS * WIDTH
    w_ptr += tile * QT * HEADS
    out_ptr += tile * QT * TOP
    list_keys_ptr += tile * QT * ROOM
    list_ids_ptr += tile * QT * ROOM
    count_ptr += tile * QT
    bar_ptr += tile * QT
    before = first + tile * QT + 1  # tokens up to and including the tile's first query
    left = (tokens - tile * QT).to(tl.int32)
    query = tl.arange(0, QT)
    real = query < left
    sees = tl.where(real, (before + query) // POOL, 0).to(tl.int32)
    most = tl.max(sees, 0)
    count, bar = tl.zeros([QT], tl.int32), tl.full([QT], LOWEST, tl.int32)
    if most > TOP:
        for start in range(0, most, PT):
            inside = tl.arange(0, PT)
            pool = start + inside
            scores = _score_tile(
                q_ptr, w_ptr, keys_ptr, query, real, inside, pool < most, scale, HEADS, WIDTH, QT, PT, WT
            )  # fmt: skip
            key = _ordered(scores)
            enters = (pool[None, :] < sees[:, None]) & (scores > float("-inf")) & (key > bar[:, None])
            step = enters.to(tl.int32)
            place = query[:, None] * ROOM + count[:, None] + tl.cumsum(step, 1) - 1
            tl.store(list_keys_ptr + place, key, mask=enters)
            tl.store(list_ids_ptr + place, tl.broadcast_to(pool[None, :], [QT, PT]), mask=enters)
            count += tl.sum(step, 1)
            if (tl.max(count, 0) + PT > ROOM) | (start + PT >= most):
                tl.store(count_ptr + query, count)
                tl.debug_barrier()
                for row in range(0, QT, ROWS):
                    _cut(list_keys_ptr, list_ids_ptr, count_ptr, bar_ptr, row + tl.arange(0, ROWS), TOP, ROOM)
                tl.debug_barrier()
                count, bar = tl.load(count_ptr + query), tl.load(bar_ptr + query)
            keys_ptr += PT * WIDTH
    slot = tl.arange(0, TOP_WIDE)
    for start in range(0, QT, ROWS):
        row = start + tl.arange(0, ROWS)
        if most > TOP:
            held = slot[None, :] < tl.load(count_ptr + row)[:, None]
            ids = tl.load(list_ids_ptr + row[:, None] * ROOM + slot[None, :], mask=held, other=-1)
        else:  # everything visible is kept: plain causal attention
            visible = ((before + row) // POOL).to(tl.int32)
            ids = tl.where(slot[None, :] < visible[:, None], slot[None, :], -1)
        inside = (row < left)[:, None] & (slot < TOP)[None, :]
        tl.store(out_ptr + row[:, None] * TOP + slot[None, :], ids, mask=inside)


def constants(heads: int, width: int, pool: int, top: int) -> dict[str, int]:
    """What ``select_kernel`` is compiled for, and its launch."""
    return {
        "POOL": pool, "TOP": top, "TOP_WIDE": triton.next_power_of_2(top),
        "ROOM": triton.next_power_of_2(top + max(top, POOL_TILE)),
        "HEADS": heads, "WIDTH": width, "QT": QUERY_TILE, "PT": POOL_TILE, "WT": WIDTH_TILE, "ROWS": ROWS_CUT,
        "num_warps": NUM_WARPS, "num_stages": NUM_STAGES, "enable_fp_fusion": True,
    }  # fmt: skip


def select(q_TID: Tensor, w_TI: Tensor, keys_JD: Tensor, first: int, pool: int, top: int) -> Tensor:
    """``indexer.select_pools`` on the GPU: int32 [T, top], ascending ids, -1 where unused."""
    tokens, heads, width = q_TID.shape
    if (first + tokens) // pool > len(keys_JD):  # the kernel would read what lies behind them
        raise ValueError(f"queries up to {first + tokens} see more pools than the {len(keys_JD)} there are")
    out = torch.empty(tokens, top, dtype=torch.int32, device=q_TID.device)
    options = constants(heads, width, pool, top)
    rows = QUERY_TILES_AT_ONCE * QUERY_TILE
    room = min(rows, triton.cdiv(tokens, QUERY_TILE) * QUERY_TILE)
    lists = torch.empty(2, room, options["ROOM"], dtype=torch.int32, device=q_TID.device)
    state = torch.empty(2, room, dtype=torch.int32, device=q_TID.device)
    q, w, keys = q_TID.contiguous(), w_TI.contiguous(), keys_JD.contiguous()
    for start in range(0, tokens, rows):
        end = min(start + rows, tokens)
        select_kernel[(triton.cdiv(end - start, QUERY_TILE),)](
            q[start:end], w[start:end], keys, out[start:end], lists[0], lists[1], state[0], state[1],
            first + start, end - start, width**-0.5, **options,
        )  # fmt: skip
    return out
