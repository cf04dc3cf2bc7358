"""Pooled index keys are kept in the model's dtype, rounded once, and scored as they are kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from genoctx.config import preset_model
from genoctx.model.carry import Chunk, DsaCarry
from genoctx.model.dsa import SparseAttention
from genoctx_kernels.dsa import pool_keys, select_pools

TOKENS = 203


def layer(dtype: torch.dtype) -> SparseAttention:
    config = replace(preset_model("micro"), index_kpool=4, index_topk=20)
    made = SparseAttention(config, "off")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (0.2 if p.ndim > 1 else 1.0))
    return made.to(dtype)


def inputs(made: SparseAttention) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, TOKENS, made.q_a_proj.weight.shape[1], generator=generator)
    return x.to(made.q_a_proj.weight.dtype)


@torch.no_grad()
def swept(made: SparseAttention, cuts: tuple[int, ...]) -> tuple[DsaCarry, Tensor]:
    """What is kept at the end, and the pools of all queries."""
    x, carry, chosen = inputs(made), made.initial_carry(1, TOKENS), []
    for start, end in pairwise((0, *cuts, TOKENS)):
        streams = x[:, start:end]
        _, carry, pools, _ = made(streams, Chunk(streams.unsqueeze(2), (0,)), carry)
        chosen.append(pools[0])
    return carry, torch.cat(chosen)


@torch.no_grad()
def keys_and_choice(made: SparseAttention, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pooled keys of the whole window as ``dtype`` has them, and what they make the queries choose."""
    x = inputs(made)
    index = made.indexer(x, made.q_a_layernorm(made.q_a_proj(x)))
    keys = pool_keys(index.k[0], index.gate[0], made.indexer.index_kpool_compress_ape).to(dtype)
    return keys, select_pools(index.q[0], index.weights[0], keys, 0, made.pool, made.top)


@pytest.mark.parametrize("cuts", [(), (2, 5, 6, 90, 131), tuple(range(16, TOKENS, 16))])
def test_bfloat16_keys_are_rounded_once_and_scored_as_kept(cuts: tuple[int, ...]) -> None:
    made = layer(torch.bfloat16)
    carry, chosen = swept(made, cuts)
    keys, choice = keys_and_choice(made, torch.bfloat16)
    assert carry.rows[0].keys.rows.dtype == torch.bfloat16
    assert torch.equal(carry.rows[0].keys.rows, keys)
    assert torch.equal(chosen, choice)
    assert not torch.equal(chosen, keys_and_choice(made, torch.float32)[1])  # rounding matters here


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_keys_are_kept_as_they_are(dtype: torch.dtype) -> None:
    carry, _ = swept(layer(dtype), (2, 5, 6, 90, 131))
    keys, _ = keys_and_choice(layer(dtype), dtype)
    assert carry.rows[0].keys.rows.dtype == dtype
    # products of few rows may differ in the last bit from those of many (decision 002)
    assert torch.allclose(carry.rows[0].keys.rows, keys, rtol=1e-5, atol=1e-6)
