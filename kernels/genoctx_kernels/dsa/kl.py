"""KL between the attention's mass per pool and the indexer's distribution (spec section 3).

For query t with m >= 1 visible pools and support J (sparse: the selected pools; dense: all m):

    p_j = attention mass of pool j, summed over heads, renormalised over J      (a constant)
    L_t = sum_j p_j (log p_j - log softmax_J(I_t)_j),   dL_t / dI_tj = softmax_J(I_t)_j - p_j

The caller divides by the number of such queries of the whole step. Gradients reach the indexer's
q, w and pooled keys only; those of older keys are added into the caller's buffer, as in attention.py.
Plain torch on every device: the loss is for short phases in which the indexer learns.

Letters: T queries, I indexer heads, D index width, J pools, K pools in a support, H heads, R latent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.dsa.attention import pool_mass
from genoctx_kernels.numerics import accumulator, up

TILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Teacher:
    """The main attention whose mass the indexer learns; all tensors detached."""

    q_THR: Tensor
    latents_SR: Tensor
    scale: float


@dataclass(frozen=True)
class Support:
    """Which pools each query is judged on."""

    ids_TK: Tensor | None  # None: dense, every visible pool
    first: int
    pool: int
    d_keys_JD: Tensor | None
    new_keys: int  # the first pool completed in this chunk


def _dense_mass(teacher: Teacher, rows: slice, positions_T: Tensor, pools: int, pool: int) -> Tensor:
    latents = teacher.latents_SR[: int(positions_T[-1]) + 1]
    logits = up(teacher.q_THR[rows] @ latents.T) * teacher.scale
    future = torch.arange(len(latents), device=latents.device) > positions_T.unsqueeze(1)
    probs = logits.masked_fill_(future.unsqueeze(1), float("-inf")).softmax(-1).sum(1)
    return probs[:, : pools * pool].unflatten(-1, (pools, pool)).sum(-1)


class _Part:
    """Scores, target and indices of one tile of queries."""

    def __init__(
        self, q: Tensor, w: Tensor, keys: Tensor, teacher: Teacher, at: Support, rows: slice
    ) -> None:
        self.q, self.w = up(q[rows]), up(w[rows])
        self.width = q.shape[-1] ** -0.5
        positions = torch.arange(at.first + rows.start, at.first + rows.stop, device=q.device)
        visible = (positions + 1) // at.pool
        if at.ids_TK is None:
            pools = int(visible[-1])
            self.index: Tensor | None = None
            self.keys = up(keys[:pools])
            unseen = torch.arange(pools, device=q.device) >= visible.unsqueeze(1)
            mass = _dense_mass(teacher, rows, positions, pools, at.pool)
        else:
            ids = at.ids_TK[rows]
            self.index = ids.long().clamp_min(0)
            self.keys = up(keys[self.index])
            unseen = ids < 0
            start = at.first + rows.start
            mass = pool_mass(teacher.q_THR[rows], teacher.latents_SR, ids, start, at.pool, teacher.scale)
        mass = mass.masked_fill(unseen, 0.0)
        self.counted = (visible > 0).unsqueeze(1)
        self.target = mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
        self.active = (self.q @ self.keys.mT).mul_(self.width).relu_()
        scores = torch.bmm(self.w.unsqueeze(1), self.active).squeeze(1)
        self.log_q = scores.masked_fill(unseen, torch.finfo(scores.dtype).min).log_softmax(-1)
        self.unseen = unseen

    def loss(self) -> Tensor:
        terms = torch.special.xlogy(self.target, self.target) - self.target * self.log_q
        return terms.masked_fill(self.unseen, 0.0).sum(dtype=torch.float64)

    def gradients(self, factor: Tensor, d_keys: Tensor) -> tuple[Tensor, Tensor]:
        """dq, dw; adds into ``d_keys``."""
        d_scores = (self.log_q.exp() - self.target).masked_fill(self.unseen | ~self.counted, 0.0) * factor
        d_w = torch.bmm(self.active, d_scores.unsqueeze(-1)).squeeze(-1)
        d_dots = self.w.unsqueeze(-1) * d_scores.unsqueeze(1) * (self.active > 0) * self.width
        d_q = d_dots @ self.keys
        if self.index is None:
            d_keys[: len(self.keys)] += d_dots.flatten(0, 1).mT @ self.q.flatten(0, 1)
        else:
            d_keys.index_add_(0, self.index.flatten(), (d_dots.mT @ self.q).flatten(0, 1))
        return d_q, d_w


def _tiles(q_TID: Tensor, keys: Tensor, at: Support) -> list[slice]:
    """Tiles of queries that see at least one pool."""
    per_query = (
        8 * q_TID.shape[1] * max(1, len(keys) if at.ids_TK is None else at.ids_TK.shape[1] * q_TID.shape[2])
    )
    step = max(1, TILE_BYTES // per_query)
    begin = max(0, at.pool - 1 - at.first)
    return [slice(s, min(s + step, len(q_TID))) for s in range(begin, len(q_TID), step)]


class _IndexerKl(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_TID: Tensor, w_TI: Tensor, own_JD: Tensor, keys_JD: Tensor, teacher: Teacher, at: Support
    ) -> Tensor:
        ctx.save_for_backward(q_TID, w_TI, own_JD)
        ctx.rest = (keys_JD, teacher, at)
        total = torch.zeros((), dtype=torch.float64, device=q_TID.device)
        for rows in _tiles(q_TID, keys_JD, at):
            total += _Part(q_TID, w_TI, keys_JD, teacher, at, rows).loss()
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        q_TID, w_TI, own_JD = ctx.saved_tensors
        keys, teacher, at = ctx.rest
        dtype = accumulator(q_TID.dtype)
        d_keys = at.d_keys_JD if at.d_keys_JD is not None else torch.zeros_like(keys, dtype=dtype)
        d_q, d_w = torch.zeros_like(q_TID), torch.zeros_like(w_TI)
        for rows in _tiles(q_TID, keys, at):
            part = _Part(q_TID, w_TI, keys, teacher, at, rows)
            d_q_part, d_w_part = part.gradients(d_total.to(dtype), d_keys)
            d_q[rows], d_w[rows] = d_q_part.to(d_q.dtype), d_w_part.to(d_w.dtype)
        d_own = d_keys[at.new_keys : at.new_keys + len(own_JD)].to(own_JD.dtype, copy=True)
        return d_q, d_w, d_own, None, None, None


def indexer_kl(
    q_TID: Tensor,
    w_TI: Tensor,
    own_JD: Tensor,
    keys_JD: Tensor,
    teacher: Teacher,
    *,
    ids_TK: Tensor | None,
    first: int,
    pool: int,
    d_keys_JD: Tensor | None = None,
) -> Tensor:
    """Sum of the KL over queries that see a pool, float64 scalar.

    ``keys_JD`` are the pooled keys of every complete pool so far; ``own_JD`` the ones completed by
    this chunk once more, as they were before they were rounded to the dtype of ``keys_JD``: only their
    gradient is used, float32 (float64 for float64). ``ids_TK`` selects the sparse support, None the
    dense one (quadratic in time, linear in memory). Gradients of all keys are added into
    ``d_keys_JD``; without it the chunk must be the first (ValueError otherwise).
    """
    new_keys = len(keys_JD) - len(own_JD)
    if d_keys_JD is None and new_keys > 0 and torch.is_grad_enabled():
        raise ValueError("a later chunk needs d_keys_JD, or the gradient of older keys is lost")
    at = Support(ids_TK, first, pool, d_keys_JD, new_keys)
    return _IndexerKl.apply(q_TID, w_TI, own_JD, keys_JD, teacher, at)
