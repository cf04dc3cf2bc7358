"""Pooled index keys and the streaming top-k over them. The score matrix never exists as a whole.

Order of candidates is total (topk.py): DNA is full of exact ties (N runs, poly-A). Plain torch here; on a
GPU the same selection in triton_select.py.

Letters: T tokens, J pools, P tokens a pool, I indexer heads, D index width, K pools kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.numerics import up
from genoctx_kernels.topk import best_columns

QUERY_TILE = 256
POOL_TILE = 2048  # a multiple of GROUP
GROUP = 16  # pools whose best score decides whether any of them is looked at


def pool_keys(k_TD: Tensor, gate_TD: Tensor, ape_PD: Tensor) -> Tensor:
    """Keys of the complete pools among the given tokens: [T // P, D], float32 (float64 for float64).

    The first token must open a pool. Per channel, a softmax over the P slots of gate + ape weighs
    the P keys (spec section 2.8). Ordinary autograd.
    """
    pool = ape_PD.shape[0]
    whole = k_TD.shape[0] // pool * pool
    gate = up(gate_TD[:whole]).unflatten(0, (-1, pool)) + up(ape_PD)
    return (gate.softmax(1) * up(k_TD[:whole]).unflatten(0, (-1, pool))).sum(1)


class _Scorer:
    """Scores of one tile of queries against tiles of pools, as [pools, queries]."""

    def __init__(self, q_TID: Tensor, w_TI: Tensor) -> None:
        tokens, heads, width = q_TID.shape
        self.q_DX = (q_TID * width**-0.5).permute(2, 1, 0).reshape(width, heads * tokens)
        self.w_IT = w_TI.T.contiguous()
        self.work = q_TID.new_empty(POOL_TILE, heads * tokens)

    def __call__(self, keys_JD: Tensor) -> Tensor:
        dots = torch.mm(keys_JD, self.q_DX, out=self.work[: len(keys_JD)]).relu_()
        dots_JIT = dots.unflatten(1, self.w_IT.shape)
        scores = dots_JIT[:, 0] * self.w_IT[0]
        for i in range(1, len(self.w_IT)):
            scores.addcmul_(dots_JIT[:, i], self.w_IT[i])
        return scores


class _Running:
    """Best pools so far of one tile of queries: scores and ids, ids ascending in every row.

    A later pool gets in only with a score above the worst kept one (ties go to the earlier), so
    groups whose best score is not above it need no look at their members. The few entries that pass
    wait until a merge is worth its cost; the bar is then older, hence lower, never wrong.
    """

    def __init__(self, tokens: int, keep: int, like: Tensor) -> None:
        self.keep = keep
        self.scores = like.new_full((tokens, keep), float("-inf"))
        self.ids = torch.full((tokens, keep), -1, dtype=torch.int32, device=like.device)
        self.worst = self.scores[:, 0].clone()
        self.full = False
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # (query, score, id), ids ascending per query
        self.count_waiting = 0

    def add(self, scores_JT: Tensor, first_pool: int) -> None:
        """Take in pools first_pool, first_pool + 1, ..., all later than those seen so far; J % GROUP == 0."""
        if not self.full:
            return self._merge_all(scores_JT, first_pool)
        grouped = scores_JT.view(-1, GROUP, scores_JT.shape[1])
        hits = torch.nonzero(grouped.amax(1) > self.worst)
        if len(hits) * GROUP > scores_JT.numel() // 4:
            return self._merge_all(scores_JT, first_pool)
        group, query = hits[:, 0], hits[:, 1]
        members = grouped[group, :, query]
        entry, slot = torch.nonzero(members > self.worst[query].unsqueeze(1), as_tuple=True)
        ids = first_pool + group[entry] * GROUP + slot
        self.waiting.append((query[entry], members[entry, slot], ids.to(torch.int32)))
        self.count_waiting += len(entry)
        if self.count_waiting > self.keep * len(self.worst) // 4:
            self.flush()
        return None

    def _merge_all(self, scores_JT: Tensor, first_pool: int) -> None:
        self.flush()
        pools = torch.arange(
            first_pool, first_pool + len(scores_JT), dtype=torch.int32, device=scores_JT.device
        )
        self._merge(scores_JT.T, pools.expand(scores_JT.shape[1], -1))

    def flush(self) -> None:
        """Merge the waiting entries, laid out as short rows, one per query, pools ascending."""
        if not self.count_waiting:
            return
        query, scores, ids = (torch.cat(part) for part in zip(*self.waiting, strict=True))
        self.waiting, self.count_waiting = [], 0
        order = query.argsort(stable=True)
        row = query[order]
        counts = torch.bincount(row, minlength=len(self.worst))
        column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        shape = (len(self.worst), int(counts.max()))
        wide_scores = self.scores.new_full(shape, float("-inf"))
        wide_ids = torch.full(shape, -1, dtype=torch.int32, device=row.device)
        wide_scores[row, column], wide_ids[row, column] = scores[order], ids[order]
        self._merge(wide_scores, wide_ids)

    def _merge(self, scores: Tensor, ids: Tensor) -> None:
        values, ids = torch.cat((self.scores, scores), 1), torch.cat((self.ids, ids), 1)
        columns = best_columns(values, self.keep)
        self.scores, self.ids = values.gather(1, columns), ids.gather(1, columns)
        self.worst = self.scores.amin(1)
        self.full = bool((self.worst > float("-inf")).all())


@torch.no_grad()
def select_pools(q_TID: Tensor, w_TI: Tensor, keys_JD: Tensor, first: int, pool: int, top: int) -> Tensor:
    """Pools each query attends to: int32 [T, top], ascending ids, -1 where fewer pools are visible.

    Query t stands at position ``first + t`` and sees pools j < (first + t + 1) // pool. ``w_TI``
    already carries the heads' scale. Scores are float32 (float64 for float64) on every path.
    """
    if choose("dsa_indexer", q_TID, w_TI, keys_JD).triton:
        from genoctx_kernels.dsa.triton_select import select

        return select(q_TID, w_TI, keys_JD, first, pool, top)
    q, w, keys = up(q_TID), up(w_TI), up(keys_JD)
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
    running, scorer = _Running(len(q), top, q), _Scorer(q, w)
    for start in range(0, most, POOL_TILE):
        end = min(start + POOL_TILE, most)
        tile = keys[start:end]
        if missing := -len(tile) % GROUP:
            tile = torch.nn.functional.pad(tile, (0, 0, 0, missing))
        scores = scorer(tile)
        if start + len(tile) > fewest:
            pools = torch.arange(start, start + len(tile), device=q.device).unsqueeze(1)
            scores.masked_fill_(pools >= visible, float("-inf"))
        running.add(scores, start)
    running.flush()
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
