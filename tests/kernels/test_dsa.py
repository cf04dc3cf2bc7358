"""Pooling, selection, sparse attention and KL against full matrices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from compare import assert_equal_in_float64, assert_error_bound
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from genoctx_kernels.dsa import attention, indexer, indexer_kl, kl, pool_keys, select_pools, sparse_attention
from genoctx_kernels.dsa.kl import Teacher
from genoctx_kernels.dsa.reference import (
    attention_reference,
    index_scores_reference,
    kl_reference,
    pool_keys_reference,
    select_reference,
    visible_reference,
)
from genoctx_kernels.topk import best_columns

SHAPES = [(1, 4, 2), (3, 4, 2), (23, 4, 3), (63, 4, 5), (100, 1, 7), (37, 8, 4), (100, 2, 50)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integers(*shape: int, seed: int = 0, spread: int = 2) -> Tensor:
    """Small integers: scores of width-4 heads are then exact, and full of ties."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-spread, spread + 1, shape, generator=g).double()


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles even at these sizes."""
    monkeypatch.setattr(indexer, "QUERY_TILE", 7)
    monkeypatch.setattr(indexer, "POOL_TILE", 16)
    monkeypatch.setattr(attention, "GATHER_BYTES", 4096)
    monkeypatch.setattr(kl, "TILE_BYTES", 4096)


@pytest.mark.parametrize("tokens", [0, 3, 4, 5, 64])
def test_pooling(tokens: int) -> None:
    assert_equal_in_float64(
        pool_keys, pool_keys_reference, [draw(tokens, 6), draw(tokens, 6, seed=1), draw(4, 6, seed=2)]
    )


@given(
    seed=st.integers(0, 10**6), rows=st.integers(1, 5), columns=st.integers(1, 40), keep=st.integers(1, 45)
)
def test_best_columns_follow_the_total_order(seed: int, rows: int, columns: int, keep: int) -> None:
    values = integers(rows, columns, seed=seed, spread=1 + seed % 4)
    expected = values.sort(dim=1, descending=True, stable=True).indices[:, :keep].sort(1).values
    assert torch.equal(best_columns(values, keep), expected)


@given(
    seed=st.integers(0, 10**6),
    first=st.integers(0, 200),
    tokens=st.integers(1, 40),
    pool=st.sampled_from([1, 2, 4, 8]),
    top=st.integers(1, 12),
    spread=st.integers(0, 3),
    tile=st.sampled_from([16, 64, 128]),
)
def test_selection_with_ties_equals_a_stable_sort(
    seed: int, first: int, tokens: int, pool: int, top: int, spread: int, tile: int
) -> None:
    indexer.QUERY_TILE, indexer.POOL_TILE = 7, tile
    pools = (first + tokens) // pool
    q, w = integers(tokens, 2, 4, seed=seed, spread=spread), integers(tokens, 2, seed=seed + 1, spread=spread)
    keys = integers(pools, 4, seed=seed + 2, spread=spread)
    expected = select_reference(index_scores_reference(q, w, keys), pool, top, first)
    assert torch.equal(select_pools(q, w, keys, first, pool, top), expected)


def test_all_scores_equal_keeps_the_first_pools() -> None:
    ids = select_pools(torch.zeros(40, 2, 4), torch.ones(40, 2), torch.ones(10, 4), 0, 4, 3)
    assert ids[-1].tolist() == [0, 1, 2]


def attention_inputs(tokens: int, pool: int, top: int) -> tuple[list[Tensor], Tensor]:
    q, latents = draw(tokens, 2, 5), draw(tokens, 5, seed=1)
    scores = draw(tokens, tokens // pool, seed=2)
    return [q, latents], select_reference(scores, pool, top)


def _buffer(latents: Tensor, pool: int) -> Tensor:
    rows = -(-len(latents) // pool) * pool
    buffer = torch.zeros(rows, latents.shape[1], dtype=latents.dtype)
    buffer[: len(latents)] = latents.detach()
    return buffer


@pytest.mark.parametrize("tokens,pool,top", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_attention(tokens: int, pool: int, top: int, dtype: torch.dtype) -> None:
    inputs, ids = attention_inputs(tokens, pool, top)
    seen = visible_reference(ids, pool, tokens)

    def op(q: Tensor, latents: Tensor) -> Tensor:
        return sparse_attention(q, latents, _buffer(latents, pool), ids, first=0, pool=pool, scale=0.4)

    def reference(q: Tensor, latents: Tensor) -> Tensor:
        return attention_reference(q, latents, seen, 0.4)[0]

    if dtype == torch.float64:
        assert_equal_in_float64(op, reference, inputs)
    else:
        assert_error_bound(op, reference, inputs, dtype)


@pytest.fixture
def undefined_is_nan() -> Iterator[None]:
    """torch fills memory that nobody has written with NaN while its deterministic mode is on."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("undefined_is_nan")
@pytest.mark.parametrize("width", [2, 64])
def test_attention_reads_nothing_undefined(width: int) -> None:
    """Memory is shared by all tiles, the last of which is smaller; small products take their own way in torch."""
    q, latents = draw(37, 2, width), draw(37, width, seed=1)
    ids = select_reference(draw(37, 9, seed=2), 4, 3)
    seen = visible_reference(ids, 4, 37)
    assert torch.empty(1).isnan()
    assert_equal_in_float64(
        lambda q, c: sparse_attention(q, c, _buffer(c, 4), ids, first=0, pool=4, scale=0.4),
        lambda q, c: attention_reference(q, c, seen, 0.4)[0],
        [q, latents],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cut", [1, 2, 31, 32, 99])
def test_attention_does_not_depend_on_where_a_window_is_cut(
    cut: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles begin with the chunk, so a query's place in a tile, and the tile's size, differ: no bit does."""
    monkeypatch.setattr(attention, "GATHER_BYTES", 1 << 18)
    tokens, pool = 100, 4
    q, buffer = draw(tokens, 4, 64).to(dtype), draw(tokens, 64, seed=1).to(dtype)
    ids = select_reference(draw(tokens, tokens // pool, seed=2), pool, 8)

    def outputs(start: int, stop: int) -> Tensor:
        own, part = buffer[start:stop], ids[start:stop]
        return sparse_attention(q[start:stop], own, buffer, part, first=start, pool=pool, scale=0.4)

    assert torch.equal(torch.cat((outputs(0, cut), outputs(cut, tokens))), outputs(0, tokens))


def test_attention_of_a_later_chunk_adds_into_the_buffer() -> None:
    """Gradients of older latents land in the buffer; those of this chunk come back with what waited there."""
    inputs, ids = attention_inputs(23, 4, 3)
    q, latents = (x.requires_grad_() for x in inputs)
    weights = draw(23, 2, 5, seed=5)
    seen = visible_reference(ids, 4, 23)
    (attention_reference(q, latents, seen, 0.4)[0] * weights)[9:].sum().backward()
    waiting = draw(24, 5, seed=6)
    d_buffer = waiting.clone()
    own = latents.detach()[9:].requires_grad_()
    out = sparse_attention(
        q.detach()[9:], own, _buffer(latents, 4), ids[9:], first=9, pool=4, scale=0.4, d_buffer_SR=d_buffer
    )
    (out * weights[9:]).sum().backward()
    assert latents.grad is not None and own.grad is not None
    assert (d_buffer[:23] - waiting[:23] - latents.grad).abs().max() < 1e-12
    assert (own.grad - latents.grad[9:] - waiting[9:23]).abs().max() < 1e-12


def test_a_later_chunk_without_a_buffer_is_refused() -> None:
    inputs, ids = attention_inputs(23, 4, 3)
    q, latents = inputs
    with pytest.raises(ValueError, match="d_buffer"):
        own = latents[9:].requires_grad_()
        sparse_attention(q[9:], own, _buffer(latents, 4), ids[9:], first=9, pool=4, scale=0.4)


@pytest.mark.parametrize("tokens,pool,top", SHAPES)
@pytest.mark.parametrize("dense", [False, True])
def test_indexer_kl(tokens: int, pool: int, top: int, dense: bool) -> None:
    (q_main, latents), ids = attention_inputs(tokens, pool, top)
    pools = tokens // pool
    seen = torch.ones(tokens, tokens).tril().bool() if dense else visible_reference(ids, pool, tokens)
    probs = attention_reference(q_main, latents, seen, 0.4)[1]
    support = torch.zeros(tokens, pools, dtype=torch.bool)
    for t in range(tokens):
        chosen = range((t + 1) // pool) if dense else [j for j in ids[t].tolist() if j >= 0]
        support[t, list(chosen)] = True

    def op(q: Tensor, w: Tensor, k: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
        keys = pool_keys(k, gate, ape)
        teacher = Teacher(q_main, _buffer(latents, pool), 0.4)
        chosen = None if dense else ids
        return indexer_kl(q, w, keys, keys.detach(), teacher, ids_TK=chosen, first=0, pool=pool)

    def reference(q: Tensor, w: Tensor, k: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
        return kl_reference(
            index_scores_reference(q, w, pool_keys_reference(k, gate, ape)), probs, support, pool
        )

    parts = [draw(tokens, 3, 6), draw(tokens, 3, seed=1), draw(tokens, 6, seed=2), draw(tokens, 6, seed=3)]
    assert_equal_in_float64(op, reference, [*parts, draw(pool, 6, seed=4)])
