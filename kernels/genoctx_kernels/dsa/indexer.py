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
from genoctx_kernels.product import relu_product
from genoctx_kernels.topk import best_columns

QUERY_TILE = 256
POOL_TILE = 4096  # a multiple of GROUP
GROUP = 16  # pools whose best score decides whether any of them is looked at
SMALL_GROUP = 4  # the same where the best of all pools of a tile are wanted


def pool_keys(k_TD: Tensor, gate_TD: Tensor, ape_PD: Tensor) -> Tensor:
    """Keys of the complete pools among the given tokens: [T // P, D], float32 (float64 for float64).

    The first token must open a pool. Per channel, a softmax over the P slots of gate + ape weighs
    the P keys (spec section 2.8). Ordinary autograd. Whoever keeps the keys rounds them once, to the
    model's dtype, and scores what it keeps; the gradient of that rounding is the identity.
    """
    pool = ape_PD.shape[0]
    whole = k_TD.shape[0] // pool * pool
    gate = up(gate_TD[:whole]).unflatten(0, (-1, pool)) + up(ape_PD)
    return (gate.softmax(1) * up(k_TD[:whole]).unflatten(0, (-1, pool))).sum(1)


class _Scorer:
    """Scores of one tile of queries against tiles of pools, as [pools, queries], head by head: they stay in cache."""

    def __init__(self, q_TID: Tensor, w_TI: Tensor) -> None:
        self.q_ITD = (q_TID * q_TID.shape[-1] ** -0.5).transpose(0, 1).contiguous()
        self.w_IT = w_TI.T.contiguous()

    def __call__(self, keys_JD: Tensor) -> Tensor:
        scores = relu_product(keys_JD, self.q_ITD[0]).mul_(self.w_IT[0])
        for q_TD, w_T in zip(self.q_ITD[1:], self.w_IT[1:], strict=True):
            scores.addcmul_(relu_product(keys_JD, q_TD), w_T)
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
        self.waiting: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # query, place in its row, score, id
        self.lengths = torch.zeros(tokens, dtype=torch.int64, device=like.device)
        """Entries of each query that wait."""
        self.count_waiting = 0

    def add(self, scores_JT: Tensor, first_pool: int) -> None:
        """Take in pools first_pool, first_pool + 1, ..., all later than those seen so far; J % GROUP == 0."""
        if not self.full:
            return self._merge_best(scores_JT, first_pool)
        grouped = scores_JT.view(-1, GROUP, scores_JT.shape[1])
        hits = torch.nonzero((grouped.amax(1) > self.worst).T)
        if len(hits) * GROUP > scores_JT.numel() // 4:
            return self._merge_best(scores_JT, first_pool)
        query, group = hits[:, 0], hits[:, 1]
        members = grouped[group, :, query]
        entry, slot = torch.nonzero(members > self.worst[query].unsqueeze(1), as_tuple=True)
        self._wait(query[entry], members[entry, slot], first_pool + group[entry] * GROUP + slot)
        if self.count_waiting > self.keep * len(self.worst) // 4:
            self.flush()
        return None

    def _wait(self, query: Tensor, scores: Tensor, ids: Tensor) -> None:
        """Entries ordered by query, then pool; all pools later than those that wait."""
        counts = torch.bincount(query, minlength=len(self.lengths))
        before = self.lengths - (counts.cumsum(0) - counts)
        place = torch.arange(len(query), device=query.device) + before[query]
        self.waiting.append((query, place, scores, ids.to(torch.int32)))
        self.lengths += counts
        self.count_waiting += len(query)

    def _merge_best(self, scores_JT: Tensor, first_pool: int) -> None:
        """Merge the members of the groups with the best maxima: ``keep`` groups have the ``keep`` best pools."""
        self.flush()
        groups = len(scores_JT) // SMALL_GROUP
        if groups >= 4 * self.keep:  # else a second look costs more than it saves
            best_JT = scores_JT.view(groups, SMALL_GROUP, -1).amax(1)
            of_query = best_columns(best_JT.T.contiguous(), self.keep)
            slots = torch.arange(SMALL_GROUP, device=scores_JT.device)
            pools = (of_query.unsqueeze(-1) * SMALL_GROUP + slots).flatten(1)
            scores = scores_JT.T.gather(1, pools)
        else:
            pools = torch.arange(len(scores_JT), device=scores_JT.device).expand(scores_JT.shape[1], -1)
            scores = scores_JT.T
        self._merge(scores, (first_pool + pools).to(torch.int32))

    def flush(self) -> None:
        """Merge the waiting entries, laid out as short rows, one per query, pools ascending."""
        if not self.count_waiting:
            return
        row, place, scores, ids = (torch.cat(part) for part in zip(*self.waiting, strict=True))
        shape = (len(self.worst), int(self.lengths.max()))
        wide_scores = self.scores.new_full(shape, float("-inf"))
        wide_ids = torch.full(shape, -1, dtype=torch.int32, device=row.device)
        wide_scores[row, place], wide_ids[row, place] = scores, ids
        self.waiting, self.count_waiting = [], 0
        self.lengths.zero_()
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
    already carries the heads' scale. Keys may be of any dtype; scores are float32 (float64 for float64)
    on every path.
    """
    if choose("dsa_indexer", q_TID, w_TI, keys_JD).triton:
        from genoctx_kernels.dsa.triton_select import select

        return select(q_TID, w_TI, keys_JD, first, pool, top)
    q, w = up(q_TID), up(w_TI)
    parts = [torch.empty(0, top, dtype=torch.int32, device=q.device)]
    for start in range(0, len(q), QUERY_TILE):
        q_tile, w_tile = q[start : start + QUERY_TILE], w[start : start + QUERY_TILE]
        positions = torch.arange(len(q_tile), device=q.device) + (first + start)
        parts.append(_select_tile(q_tile, w_tile, keys_JD, positions, pool, top))
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
        tile = up(keys[start:end])
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
