"""``linear_cross_entropy`` for training and ``score_tokens`` for evaluation, over one shared tile.

Plain torch here; on a GPU training takes triton_loss.py.
Letters: T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.numerics import accumulator, up
from genoctx_kernels.product import product

TILE_BYTES = 8 << 20
"""Of logits at a time; three temporaries of this size live at once. Far below what malloc maps afresh every time."""
SMALL = 64
"""Logits a token up to which they take less room and time than finding the tokens without a target."""
_FEWEST_ROWS = 64  # the weights are read once for every tile


class Nats(NamedTuple):
    """Negative log likelihood per token and letter, float64 [T, letters]; 0 where there is no target."""

    full: Tensor
    """Over the whole vocabulary."""
    subset: Tensor
    """Renormalised over the given subset of ids."""
    chances: Tensor
    """Behind ``subset``: the probability of every letter of the alphabet, float32 [T, letters, A]."""


def _tile_tokens(weight_VD: Tensor) -> int:
    return max(_FEWEST_ROWS, TILE_BYTES // (accumulator(weight_VD.dtype).itemsize * len(weight_VD)))


def _logits(h: Tensor, weight: Tensor) -> Tensor:
    return (h @ weight.T).to(accumulator(h.dtype))


class _SmallCrossEntropy(torch.autograd.Function):
    """For few logits a token: all at once, no token left out, their gradient made and kept in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, share_T: Tensor | None
    ) -> Tensor:
        log_probs = up(product(h_TD, weight_VD)).log_softmax(-1)
        ids_T1, counts = targets_T.clamp_min(0).unsqueeze(1), (targets_T >= 0).to(log_probs.dtype)
        factor_T1 = (counts if share_T is None else counts * share_T.to(counts.dtype)).unsqueeze(1)
        nats_T1 = log_probs.gather(1, ids_T1).mul_(factor_T1)
        d_logits = log_probs.exp_().mul_(factor_T1).scatter_add_(1, ids_T1, -factor_T1)
        ctx.save_for_backward(h_TD, weight_VD, d_logits)
        return -nats_T1.sum(dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        h_TD, weight_VD, d_logits = ctx.saved_tensors
        d_logits = (d_logits * d_total.to(d_logits.dtype)).to(h_TD.dtype)
        d_weight = d_logits.mT @ h_TD if ctx.needs_input_grad[1] else None
        return product(d_logits, weight_VD.mT), d_weight, None, None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, share_T: Tensor | None
    ) -> Tensor:
        rows = torch.nonzero(targets_T >= 0).squeeze(-1)
        ctx.save_for_backward(h_TD, weight_VD, targets_T, rows)
        ctx.share_T = share_T
        total = torch.zeros((), dtype=torch.float64, device=h_TD.device)
        for part in rows.split(_tile_tokens(weight_VD)):
            logits = _logits(h_TD[part], weight_VD)
            picked = logits.gather(1, targets_T[part].unsqueeze(1)).squeeze(1)
            nats = logits.logsumexp(-1) - picked
            if share_T is not None:
                nats = nats * share_T[part]
            total += nats.sum(dtype=torch.float64)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        h_TD, weight_VD, targets_T, rows = ctx.saved_tensors
        d_h = torch.zeros_like(h_TD)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros_like(weight_VD, dtype=accumulator(weight_VD.dtype))
        for part in rows.split(_tile_tokens(weight_VD)):
            h = h_TD[part]
            d_logits = _logits(h, weight_VD).softmax(-1)
            d_logits[torch.arange(len(part), device=h.device), targets_T[part]] -= 1
            d_logits *= d_total.to(d_logits.dtype)
            if ctx.share_T is not None:
                d_logits *= ctx.share_T[part].to(d_logits.dtype).unsqueeze(1)
            d_logits = d_logits.to(h.dtype)
            d_h[part] = d_logits @ weight_VD
            if d_weight is not None:
                d_weight += d_logits.T @ h
        return d_h, None if d_weight is None else d_weight.to(weight_VD.dtype), None, None


def linear_cross_entropy(
    h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, share_T: Tensor | None = None
) -> Tensor:
    """Sum of nats, float64 scalar, over the tokens with target >= 0 (divide by their count yourself).

    ``targets_T`` int64: the id that token t must predict, negative where there is none. ``share_T``
    float: how much token t counts (divide by the sum then); absent: every token counts once.
    Logits exist for one tile of tokens at a time, forward and backward, unless there are at most SMALL a token.
    """
    if choose("loss", h_TD, weight_VD, targets_T).triton:
        from genoctx_kernels.loss.triton_loss import LinearCrossEntropy

        return LinearCrossEntropy.apply(h_TD, weight_VD, targets_T, share_T)
    few = len(weight_VD) <= SMALL and len(h_TD) > 0
    return (_SmallCrossEntropy if few else _LinearCrossEntropy).apply(h_TD, weight_VD, targets_T, share_T)


@torch.no_grad()
def score_tokens(
    h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, subset: Tensor, letters: int = 1
) -> Nats:
    """Per-letter nats over the vocabulary and renormalised over the ids in ``subset`` (int64).

    Every id of ``subset`` stands for a word of ``letters`` letters out of an alphabet of A, and the ids are
    in the words' order: A ** letters of them. A target's nats are those of its letters by the chain rule,
    p(w) = p(w1) p(w2 | w1) ..., where p(w1) sums over all words that begin with w1, and so on. What the
    whole vocabulary costs more than the subset is charged to the first letter.
    """
    tokens, alphabet = len(targets_T), round(len(subset) ** (1 / letters))
    where = h_TD.device
    full, picked = (torch.zeros(tokens, letters, dtype=torch.float64, device=where) for _ in range(2))
    nats = Nats(full, picked, torch.zeros(tokens, letters, alphabet, dtype=torch.float32, device=where))
    place = torch.full((weight_VD.shape[0],), -1, dtype=torch.int64, device=where)
    place[subset] = torch.arange(len(subset), device=where)
    rows = torch.nonzero(targets_T >= 0).squeeze(-1)
    for part in rows.split(_tile_tokens(weight_VD)):
        logits = _logits(h_TD[part], weight_VD)
        words = logits[:, subset]
        nats.subset[part], nats.chances[part] = _chain(words, place[targets_T[part]], letters, alphabet)
        nats.full[part] = nats.subset[part]
        nats.full[part, 0] += logits.logsumexp(-1).double() - words.logsumexp(-1).double()
    return nats


def _chain(words_TW: Tensor, target_T: Tensor, letters: int, alphabet: int) -> tuple[Tensor, Tensor]:
    """Each letter of the target words given the letters before it: its nats, float64 [T, letters], and the
    probabilities of all it could have been, float32 [T, letters, alphabet]."""
    rows = torch.arange(len(target_T), device=words_TW.device)
    outer = words_TW.logsumexp(-1)  # log-weight of everything that agrees with the letters so far
    nats = torch.empty(len(target_T), letters, dtype=torch.float64, device=words_TW.device)
    chances = torch.empty(len(target_T), letters, alphabet, dtype=torch.float32, device=words_TW.device)
    for letter in range(letters):
        size = alphabet ** (letters - 1 - letter)
        groups = words_TW.unflatten(1, (-1, size)).logsumexp(-1) if size > 1 else words_TW
        word = target_T // size
        inner = groups[rows, word]
        nats[:, letter] = outer.double() - inner.double()
        family = (word // alphabet * alphabet).unsqueeze(1) + torch.arange(alphabet, device=words_TW.device)
        chances[:, letter] = (groups.gather(1, family) - outer.unsqueeze(1)).exp()
        outer = inner
    return nats, chances
