"""Linear cross-entropy in Triton's interpreter: ragged tiles, panels of the vocabulary, shares, missing targets."""

from __future__ import annotations

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound, relative
from torch import Tensor

from genoctx_kernels import triton_product
from genoctx_kernels.loss import linear_cross_entropy, triton_loss
from genoctx_kernels.loss.reference import linear_cross_entropy_reference
from genoctx_kernels.triton_product import FLOAT32, TENSOR_CORES, Tile

STRETCH = triton_loss.STRETCH
SMALL = Tile(16, 16, 16, warps=4, stages=2)
HIDDEN, VOCABULARY = 20, 70

pytestmark = pytest.mark.usefixtures("on_triton")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, stretches and panels at these sizes."""
    monkeypatch.setattr(triton_product, "FLOAT32", SMALL)
    monkeypatch.setattr(triton_product, "TENSOR_CORES", SMALL)
    monkeypatch.setattr(triton_loss, "STRETCH", 32)
    monkeypatch.setattr(triton_loss, "PANEL_BYTES", 63 * 4 * 32)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(tokens: int, vocabulary: int = VOCABULARY) -> list[Tensor]:
    return [draw(tokens, HIDDEN), draw(vocabulary, HIDDEN, seed=1)]


def targets(tokens: int, vocabulary: int = VOCABULARY) -> Tensor:
    """Every seventh token, and a whole tile, without a target; first and last id present."""
    t = torch.randint(0, vocabulary, (tokens,), generator=torch.Generator().manual_seed(2))
    t[::7], t[16:32] = -100, -1
    t[1:3] = torch.tensor([0, vocabulary - 1])[: max(tokens - 1, 0)]
    return t


@pytest.mark.parametrize("tokens", [1, 2, 63, 100])
@pytest.mark.parametrize("shared", [False, True])
def test_total_and_gradients(tokens: int, shared: bool) -> None:
    share = draw(tokens, seed=3).abs().float() if shared else None
    assert_error_bound(
        lambda h, w: linear_cross_entropy(h, w, targets(tokens), share),
        lambda h, w: linear_cross_entropy_reference(h, w, targets(tokens), share),
        inputs(tokens),
        torch.float32,
    )


@pytest.mark.parametrize("vocabulary", [5, 16, 33])
def test_bfloat16_and_small_vocabularies(vocabulary: int) -> None:
    """The genome's own alphabet has 16 ids, less than any tile."""
    assert_error_bound(
        lambda h, w: linear_cross_entropy(h, w, targets(40, vocabulary)),
        lambda h, w: linear_cross_entropy_reference(h, w, targets(40, vocabulary)),
        inputs(40, vocabulary),
        torch.bfloat16,
    )


def test_no_targets_at_all() -> None:
    h, w = (x.float().requires_grad_() for x in inputs(40))
    total = linear_cross_entropy(h, w, torch.full((40,), -1))
    total.backward()
    assert h.grad is not None and w.grad is not None
    assert total.item() == 0 and not h.grad.any() and not w.grad.any()


def test_panels_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the memory allows, the gradients are those of one panel."""

    def gradients() -> tuple[Tensor, ...]:
        leaves = [x.float().requires_grad_() for x in inputs(63)]
        return torch.autograd.grad(linear_cross_entropy(*leaves, targets(63)), leaves)

    narrow = gradients()
    monkeypatch.setattr(triton_loss, "PANEL_BYTES", 1 << 20)
    for a, b in zip(narrow, gradients(), strict=True):
        assert torch.equal(a, b)


def test_a_frozen_head_gets_no_gradient() -> None:
    h, w = (x.float() for x in inputs(40))
    h.requires_grad_()
    linear_cross_entropy(h, w, targets(40)).backward()
    exact = h.detach().double().requires_grad_()
    linear_cross_entropy_reference(exact, w.double(), targets(40)).backward()
    assert h.grad is not None and exact.grad is not None and w.grad is None
    assert relative(h.grad, exact.grad) < 1e-6


def test_large_logits_do_not_overflow() -> None:
    h, w = inputs(40)

    def gradient(op, h: Tensor, w: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        h = (300 * h).requires_grad_()
        return torch.autograd.grad(op(h, w, targets(40)), h)[0]

    exact = gradient(linear_cross_entropy_reference, h, w)
    assert relative(gradient(linear_cross_entropy, h.float(), w.float()), exact) < 1e-4


def test_fits_the_gpus() -> None:
    variants = []
    for dtype, tile in (("bf16", TENSOR_CORES), ("fp32", FLOAT32)):
        launch = {"warps": tile.warps, "stages": tile.stages, "label": dtype}
        blocks = {"D": 4096, "BT": tile.rows, "BV": tile.columns, "BK": tile.inner}
        inputs = {"h_ptr": f"*{dtype}", "w_ptr": f"*{dtype}", "targets_ptr": "*i64", "lse_ptr": "*fp32"}
        sizes = {"tokens": "i32", "vocabulary": "i32"}
        forward = {**inputs, "picked_ptr": "*fp32", **sizes}
        backward = {**inputs, "factor_ptr": "*fp32", "d_ptr": f"*{dtype}", **sizes}
        backward |= {"first": "i32", "width": "i32:16", "d_row": "i32:16"}
        module = "genoctx_kernels.loss.triton_loss"
        variants += [
            Variant(f"{module}:forward_kernel", forward, {**blocks, "STRETCH": STRETCH}, **launch),
            Variant(f"{module}:d_logits_kernel", backward, blocks, **launch),
            product_variant("d_h", dtype, "fp32", tile, transposed=False),
            product_variant("d_weight", dtype, dtype, tile, transposed=True),
        ]
    assert_fits(variants)


def product_variant(label: str, dtype: str, c_dtype: str, tile: Tile, *, transposed: bool) -> Variant:
    """``transposed``: rows of A lie next to each other, instead of its columns."""
    types = {"a_ptr": f"*{dtype}", "b_ptr": f"*{dtype}", "c_ptr": f"*{c_dtype}"}
    types |= {
        "rows": "i32:16",
        "columns": "i32:16",
        "inner": "i32:16",
        "b_inner": "i32:16",
        "c_row": "i32:16",
    }
    types["a_inner" if transposed else "a_row"] = "i32:16"
    constants = {"b_column": 1, "a_row" if transposed else "a_inner": 1, "ADD": not transposed}
    constants |= {"BM": tile.rows, "BN": tile.columns, "BK": tile.inner}
    kernel = "genoctx_kernels.triton_product:product_kernel"
    return Variant(kernel, types, constants, tile.warps, tile.stages, f"{label} {dtype}")
