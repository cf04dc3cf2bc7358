"""Pooled keys kept in bfloat16: what is scored, and the error of the indexer's KL and its gradients."""

from __future__ import annotations

import pytest
import torch
from compare import assert_error_bound, run
from torch import Tensor

from genoctx_kernels.dsa import indexer, indexer_kl, pool_keys, select_pools
from genoctx_kernels.dsa.kl import Teacher
from genoctx_kernels.dsa.reference import (
    attention_reference,
    index_scores_reference,
    kl_reference,
    pool_keys_reference,
    select_reference,
)

TOKENS, POOL = 37, 4


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_keys_of_any_dtype_are_scored_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "POOL_TILE", 32)
    q, w, keys = (draw(*s, seed=i).bfloat16() for i, s in enumerate([(50, 3, 20), (50, 3), (150, 20)]))
    expected = select_reference(index_scores_reference(q.double(), w.double(), keys.double()), 1, 11, 100)
    assert torch.equal(select_pools(q, w, keys, 100, 1, 11), expected)
    assert torch.equal(select_pools(q, w, keys.float(), 100, 1, 11), expected)


@pytest.mark.parametrize("dense", [False, True])
def test_kl_of_rounded_keys(dense: bool) -> None:
    """Every gradient within twice the error of plain torch, which rounds pooling and gradients, too."""
    q_main, latents = draw(TOKENS, 2, 8, seed=8), draw(40, 8, seed=9)
    causal = torch.ones(TOKENS, TOKENS).tril().bool()
    probs = attention_reference(q_main, latents[:TOKENS], causal, 0.4)[1]
    visible = (torch.arange(TOKENS) + 1) // POOL
    support = torch.arange(TOKENS // POOL) < visible.unsqueeze(1)
    every = torch.arange(TOKENS // POOL, dtype=torch.int32).expand(TOKENS, -1)
    ids = None if dense else every.masked_fill(~support, -1)  # all that is visible, given as a selection

    def op(q: Tensor, w: Tensor, k: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
        own = pool_keys(k, gate, ape)
        teacher = Teacher(q_main.to(own.dtype), latents.to(own.dtype), 0.4)
        kept = own.detach().to(k.dtype)
        return indexer_kl(q, w, own, kept, teacher, ids_TK=ids, first=0, pool=POOL)

    def reference(q: Tensor, w: Tensor, k: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
        keys = pool_keys_reference(k, gate, ape).to(k.dtype)
        return kl_reference(index_scores_reference(q, w, keys), probs, support, POOL)

    inputs = [draw(TOKENS, 3, 6, seed=0), draw(TOKENS, 3, seed=1), draw(TOKENS, 6, seed=2)]
    inputs += [draw(TOKENS, 6, seed=3), draw(POOL, 6, seed=4)]
    assert_error_bound(op, reference, inputs, torch.bfloat16)
    low = [x.bfloat16() for x in inputs]
    assert torch.allclose(run(op, low)[0], run(reference, low)[0], rtol=1e-4)  # they score the same keys


def test_gradient_of_rounded_keys_stays_float32() -> None:
    q, w, own = draw(8, 2, 6, seed=0).bfloat16(), draw(8, 2, seed=1).bfloat16(), draw(2, 6, seed=2).float()
    teacher = Teacher(draw(8, 2, 8, seed=3).float(), draw(8, 8, seed=4).float(), 0.4)

    def gradient(keys: Tensor) -> Tensor:
        leaf = own.clone().requires_grad_()
        loss = indexer_kl(q, w, leaf, keys, teacher, ids_TK=None, first=0, pool=4)
        return torch.autograd.grad(loss, leaf)[0]

    kept = own.bfloat16()
    found = gradient(kept)
    assert found.dtype == torch.float32
    assert torch.equal(found, gradient(kept.float()))  # the dtype they are kept in changes nothing else
    assert not torch.equal(found, found.bfloat16().float())
