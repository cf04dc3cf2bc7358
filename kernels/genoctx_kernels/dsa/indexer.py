"""Pooled index keys and the streaming top-k over them. The score matrix never exists as a whole.

Order of candidates is total (topk.py): DNA is full of exact ties (N runs, poly-A).

Letters: T tokens, J pools, P tokens a pool, I indexer heads, D index width, K pools kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.numerics import up
from genoctx_kernels.topk import best_columns

QUERY_TILE = 64
POOL_TILE = 4096


def pool_keys(k_TD: Tensor, gate_TD: Tensor, ape_PD: Tensor) -> Tensor:
    """Keys of the complete pools among the given tokens: [T // P, D], float32 (float64 for float64).

    The first token must open a pool. Per channel, a softmax over the P slots of gate + ape weighs
    the P keys (spec section 2.8). Ordinary autograd.
    """
    pool = ape_PD.shape[0]
    whole = k_TD.shape[0] // pool * pool
    gate = up(gate_TD[:whole]).unflatten(0, (-1, pool)) + up(ape_PD)
    return (gate.softmax(1) * up(k_TD[:whole]).unflatten(0, (-1, pool))).sum(1)


def index_scores(q_TID: Tensor, w_TI: Tensor, keys_JD: Tensor) -> Tensor:
    """Scores [T, J] of a tile; q already carries D**-0.5."""
    tokens, heads, width = q_TID.shape
    dots = (q_TID.reshape(tokens * heads, width) @ keys_JD.mT).view(tokens, heads, -1)
    return torch.bmm(w_TI.unsqueeze(1), dots.relu_()).squeeze(1)


class _Running:
    """Best pools so far of one tile of queries: scores and ids, ids ascending in every row."""

    def __init__(self, tokens: int, keep: int, like: Tensor) -> None:
        self.keep = keep
        self.scores = like.new_full((tokens, keep), float("-inf"))
        self.ids = torch.full((tokens, keep), -1, dtype=torch.int32, device=like.device)

    def merge(self, scores: Tensor, first_pool: int) -> None:
        """Add the scores of pools first_pool, first_pool + 1, ..., all later than those seen so far."""
        pools = torch.arange(first_pool, first_pool + scores.shape[1], dtype=torch.int32, device=scores.device)
        values = torch.cat((self.scores, scores), 1)
        ids = torch.cat((self.ids, pools.expand(len(scores), -1)), 1)
        columns = best_columns(values, self.keep)
        self.scores, self.ids = values.gather(1, columns), ids.gather(1, columns)


@torch.no_grad()
def select_pools(q_TID: Tensor, w_TI: Tensor, keys_JD: Tensor, first: int, pool: int, top: int) -> Tensor:
    """Pools each query attends to: int32 [T, top], ascending ids, -1 where fewer pools are visible.

    Query t stands at position ``first + t`` and sees pools j < (first + t + 1) // pool. ``w_TI``
    already carries the heads' scale. Scores are float32 (float64 for float64) on every path.
    """
    q, w, keys = up(q_TID) * q_TID.shape[-1] ** -0.5, up(w_TI), up(keys_JD)
    parts = [torch.empty(0, top, dtype=torch.int32, device=q.device)]
    for start in range(0, len(q), QUERY_TILE):
        q_tile, w_tile = q[start : start + QUERY_TILE], w[start : start + QUERY_TILE]
        positions = torch.arange(len(q_tile), device=q.device) + (first + start)
        parts.append(_select_tile(q_tile, w_tile, keys, positions, pool, top))
    return torch.cat(parts)


def _select_tile(q: Tensor, w: Tensor, keys: Tensor, positions_T: Tensor, pool: int, top: int) -> Tensor:
    visible = (positions_T + 1) // pool
    fewest, most = int(visible[0]), int(visible[-1])
    if most <= top:  # everything visible is kept: plain causal attention
        ids = torch.arange(top, dtype=torch.int32, device=q.device).expand(len(q), -1)
        return ids.masked_fill(ids >= visible.unsqueeze(1), -1)
    running = _Running(len(q), top, q)
    for start in range(0, most, POOL_TILE):
        end = min(start + POOL_TILE, most)
        scores = index_scores(q, w, keys[start:end])
        if end > fewest:
            pools = torch.arange(start, end, device=q.device)
            scores.masked_fill_(pools >= visible.unsqueeze(1), float("-inf"))
        running.merge(scores, start)
    ids = running.ids.masked_fill(running.scores == float("-inf"), -1)
    return _unused_last(ids)


def _unused_last(ids_TK: Tensor) -> Tensor:
    """Ascending ids with the -1 entries moved behind them."""
    unused = ids_TK < 0
    if not unused.any():
        return ids_TK
    big = torch.iinfo(torch.int32).max
    ordered = ids_TK.masked_fill(unused, big).sort(1).values
    return ordered.masked_fill(ordered == big, -1)
