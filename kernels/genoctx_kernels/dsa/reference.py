"""DSA as equations on full matrices, ordinary autograd: the oracle (spec sections 2.7, 2.8 and 3).

Letters: T tokens, J complete pools, P tokens a pool, H attention heads, R latent width,
I indexer heads, D index width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.numerics import up


def pool_keys_reference(k_TD: Tensor, gate_TD: Tensor, ape_PD: Tensor) -> Tensor:
    """K_j = sum_r softmax_r(gate + ape) o k over the P tokens of every complete pool: [J, D]."""
    pool = ape_PD.shape[0]
    whole = k_TD.shape[0] // pool * pool
    gate, k = up(gate_TD[:whole]).unflatten(0, (-1, pool)), up(k_TD[:whole]).unflatten(0, (-1, pool))
    return ((gate + up(ape_PD)).softmax(1) * k).sum(1)


def index_scores_reference(q_TID: Tensor, w_TI: Tensor, keys_JD: Tensor) -> Tensor:
    """I_tj = sum_i w_ti relu(q_ti . K_j / sqrt D): [T, J]."""
    dots = torch.einsum("tid,jd->tij", up(q_TID), up(keys_JD)) * q_TID.shape[-1] ** -0.5
    return (up(w_TI).unsqueeze(-1) * dots.relu()).sum(1)


def select_reference(scores_TJ: Tensor, pool: int, top: int, first: int = 0) -> Tensor:
    """Best ``top`` pools per token by (score descending, position ascending), ascending ids, -1 padded."""
    out = torch.full((len(scores_TJ), top), -1, dtype=torch.int32)
    for t, row in enumerate(scores_TJ):
        visible = (first + t + 1) // pool
        best = row[:visible].sort(descending=True, stable=True).indices[:top].sort().values
        out[t, : len(best)] = best.to(torch.int32)
    return out


def visible_reference(ids_TK: Tensor, pool: int, tokens: int, first: int = 0) -> Tensor:
    """Which tokens each query attends to: selected pools and the tail, bool [T, tokens]."""
    seen = torch.zeros(len(ids_TK), tokens, dtype=torch.bool)
    for t, ids in enumerate(ids_TK.tolist()):
        for j in ids:
            if j >= 0:
                seen[t, j * pool : (j + 1) * pool] = True
        position = first + t
        seen[t, (position + 1) // pool * pool : position + 1] = True
    return seen


def attention_reference(
    q_THR: Tensor, latents_SR: Tensor, seen_TS: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Absorbed attention over the visible latents: outputs [T, H, R] and probabilities [T, H, S]."""
    logits = up(torch.einsum("thr,sr->ths", q_THR, latents_SR)) * scale
    probs = logits.masked_fill(~seen_TS.unsqueeze(1), float("-inf")).softmax(-1)
    return torch.einsum("ths,sr->thr", probs.to(q_THR.dtype), latents_SR), probs


def kl_reference(scores_TJ: Tensor, probs_THS: Tensor, support_TJ: Tensor, pool: int) -> Tensor:
    """Sum over tokens with a non-empty support of KL(p || softmax_support(I)), p from the attention."""
    pools = scores_TJ.shape[1]
    mass = probs_THS.detach().sum(1)[:, : pools * pool].unflatten(-1, (pools, pool)).sum(-1)
    mass = mass.masked_fill(~support_TJ, 0.0)
    total = 0 * scores_TJ.sum()  # a graph even when no query sees a pool
    for t in torch.nonzero(support_TJ.any(1)).squeeze(1).tolist():
        support = support_TJ[t]
        p = mass[t, support] / mass[t, support].sum()
        log_q = scores_TJ[t, support].log_softmax(-1)
        total = total + (torch.special.xlogy(p, p) - p * log_q).sum()
    return total
