"""Selection of pools in Triton's interpreter. Inputs are small integers where ids must match to the last tie."""

from __future__ import annotations

import pytest
import torch
from ahead import Variant, assert_fits
from torch import Tensor

from genoctx_kernels.dsa import select_pools, triton_select
from genoctx_kernels.dsa.reference import index_scores_reference, select_reference

GLM = triton_select.constants(heads=32, width=128, pool=4, top=512)

pytestmark = pytest.mark.usefixtures("on_triton")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles both ways, and several launches."""
    for name, value in (("QUERY_TILE", 16), ("POOL_TILE", 32), ("WIDTH_TILE", 16), ("ROWS_CUT", 16)):
        monkeypatch.setattr(triton_select, name, value)
    monkeypatch.setattr(triton_select, "QUERY_TILES_AT_ONCE", 5)


def integers(*shape: int, seed: int, spread: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-spread, spread + 1, shape, generator=g).float()


def drawn(
    tokens: int, pools: int, spread: int, heads: int = 2, width: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """q, w, keys; widths that are powers of 4 have exact scores."""
    return (
        integers(tokens, heads, width, seed=1, spread=spread),
        integers(tokens, heads, seed=2, spread=spread),
        integers(pools, width, seed=3, spread=spread),
    )


def expected(q: Tensor, w: Tensor, keys: Tensor, first: int, pool: int, top: int) -> Tensor:
    return select_reference(index_scores_reference(q, w, keys), pool, top, first)


@pytest.mark.parametrize(
    "tokens,pool,top,first,spread",
    [
        (3, 4, 2, 0, 2),  # no complete pool yet
        (20, 4, 8, 0, 2),  # everything visible is kept
        (63, 4, 3, 0, 1),
        (100, 1, 7, 5, 1),
        (100, 4, 40, 300, 2),
        (257, 4, 5, 0, 2),
        (40, 4, 3, 1, 0),  # all scores equal
    ],
)
def test_ties_are_broken_as_by_a_stable_sort(
    tokens: int, pool: int, top: int, first: int, spread: int
) -> None:
    q, w, keys = drawn(tokens, (first + tokens) // pool, spread)
    ids = select_pools(q, w, keys, first, pool, top)
    assert ids.dtype == torch.int32
    assert torch.equal(ids, expected(q, w, keys, first, pool, top))


def test_scores_of_either_sign_and_both_zeros() -> None:
    """A negative weight times a dead unit is -0, which must tie with 0."""
    q, w, keys = drawn(30, 90, 1)
    assert torch.equal(select_pools(q, -w.abs(), keys, 60, 1, 9), expected(q, -w.abs(), keys, 60, 1, 9))


@pytest.mark.parametrize("direction", [1, -1])
def test_rising_scores_cut_the_lists_again_and_again(direction: int) -> None:
    """Every new pool beats all before it, or none does."""
    keys = direction * torch.arange(200.0).view(-1, 1) * torch.tensor([1.0, 0, 0, 0]) + 500
    q, w = torch.tensor([1.0, 0, 0, 0]).expand(16, 1, 4), torch.ones(16, 1)
    ids = select_pools(q, w, keys, 184, 1, 6)
    assert torch.equal(ids, expected(q, w, keys, 184, 1, 6))
    assert ids[-1].tolist() == (list(range(194, 200)) if direction > 0 else list(range(6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_real_numbers(dtype: torch.dtype) -> None:
    """Three heads of width 20: neither a multiple of a tile. Scores that float64 tells apart by far."""
    g = torch.Generator().manual_seed(0)
    q, w, keys = (torch.randn(*s, generator=g).to(dtype) for s in ((50, 3, 20), (50, 3), (150, 20)))
    exact = expected(q.double(), w.double(), keys.double(), 100, 1, 11)
    assert torch.equal(select_pools(q, w, keys, 100, 1, 11), exact)


def test_neither_chunks_nor_later_pools_change_a_choice() -> None:
    q, w, keys = drawn(60, 75, 2)
    whole = select_pools(q, w, keys, 240, 4, 6)
    parts = [
        select_pools(q[:23], w[:23], keys[: 263 // 4], 240, 4, 6),
        select_pools(q[23:], w[23:], keys, 263, 4, 6),
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_no_queries() -> None:
    q, w, keys = drawn(0, 5, 1)
    assert select_pools(q, w, keys, 20, 4, 3).shape == (0, 3)


def test_fits_the_gpus() -> None:
    types = {"q_ptr": "*bf16", "w_ptr": "*bf16", "keys_ptr": "*bf16", "out_ptr": "*i32"}
    types |= dict.fromkeys(("list_keys_ptr", "list_ids_ptr", "count_ptr", "bar_ptr"), "*i32")
    types |= {"first": "i32", "tokens": "i32", "scale": "fp32"}
    constants = {k: v for k, v in GLM.items() if k.isupper()}
    kernel = "genoctx_kernels.dsa.triton_select:select_kernel"
    variant = Variant(kernel, types, constants, warps=GLM["num_warps"], stages=GLM["num_stages"])
    assert_fits([variant], stack=32)
