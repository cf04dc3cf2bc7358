"""``linear_cross_entropy`` for training and ``score_tokens`` for evaluation, over one shared tile.

Letters: T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from genoctx_kernels.numerics import accumulator

TILE_BYTES = 32 << 20  # of logits at a time


class Nats(NamedTuple):
    """Negative log likelihood per token, float64 [T]; 0 where there is no target."""

    full: Tensor
    """Over the whole vocabulary."""
    subset: Tensor
    """Renormalised over the given subset of ids."""


def _tile_tokens(vocabulary: int) -> int:
    return max(16, TILE_BYTES // (4 * vocabulary))


def _logits(h: Tensor, weight: Tensor) -> Tensor:
    return (h @ weight.T).to(accumulator(h.dtype))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
        rows = torch.nonzero(targets_T >= 0).squeeze(-1)
        ctx.save_for_backward(h_TD, weight_VD, targets_T, rows)
        total = torch.zeros((), dtype=torch.float64, device=h_TD.device)
        for part in rows.split(_tile_tokens(weight_VD.shape[0])):
            logits = _logits(h_TD[part], weight_VD)
            picked = logits.gather(1, targets_T[part].unsqueeze(1)).squeeze(1)
            total += (logits.logsumexp(-1) - picked).sum(dtype=torch.float64)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor, Tensor, None]:
        h_TD, weight_VD, targets_T, rows = ctx.saved_tensors
        d_h = torch.zeros_like(h_TD)
        d_weight = torch.zeros_like(weight_VD, dtype=accumulator(weight_VD.dtype))
        for part in rows.split(_tile_tokens(weight_VD.shape[0])):
            h = h_TD[part]
            probs = _logits(h, weight_VD).softmax(-1)
            probs[torch.arange(len(part), device=h.device), targets_T[part]] -= 1
            d_logits = (probs * d_total.to(probs.dtype)).to(h.dtype)
            d_h[part] = d_logits @ weight_VD
            d_weight += d_logits.T @ h
        return d_h, d_weight.to(weight_VD.dtype), None


def linear_cross_entropy(h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
    """Sum of nats, float64 scalar, over the tokens with target >= 0 (divide by their count yourself).

    ``targets_T`` int64: the id that token t must predict, negative where there is none.
    Logits exist for one tile of tokens at a time, forward and backward.
    """
    return _LinearCrossEntropy.apply(h_TD, weight_VD, targets_T)


@torch.no_grad()
def score_tokens(h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, subset: Tensor) -> Nats:
    """Per-token nats over the vocabulary and renormalised over the ids in ``subset`` (int64)."""
    nats = Nats(*(torch.zeros(len(targets_T), dtype=torch.float64, device=h_TD.device) for _ in range(2)))
    rows = torch.nonzero(targets_T >= 0).squeeze(-1)
    for part in rows.split(_tile_tokens(weight_VD.shape[0])):
        logits = _logits(h_TD[part], weight_VD)
        picked = logits.gather(1, targets_T[part].unsqueeze(1)).squeeze(1)
        nats.full[part] = (logits.logsumexp(-1) - picked).double()
        nats.subset[part] = (logits[:, subset].logsumexp(-1) - picked).double()
    return nats
