"""The clamped SwiGLU in Triton's interpreter, with clamps at work."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound

from genoctx_kernels.swiglu import clamped_swiglu, triton_swiglu
from genoctx_kernels.swiglu.reference import clamped_swiglu_reference

COLUMNS = triton_swiglu.COLUMNS
LIMIT = 4.0

pytestmark = pytest.mark.usefixtures("on_triton")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_swiglu, "COLUMNS", 32)


@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (2, 31, 126), (7, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Drawn in bfloat16, so that no dtype moves a value across a clamp."""
    drawn = 6 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    gate_up = drawn.bfloat16().double()
    assert_error_bound(
        partial(clamped_swiglu, limit=LIMIT), partial(clamped_swiglu_reference, limit=LIMIT), [gate_up], dtype
    )


def test_every_side_of_every_clamp() -> None:
    """At the limit itself the gradient passes; beyond it is exactly zero; there is no clamp from below on gate."""
    gate, up = torch.tensor([LIMIT, 5, -9, 1, 1, 1, 1.0]), torch.tensor([1, 1, 1, LIMIT, 5, -LIMIT, -5.0])
    x = torch.cat((gate, up)).requires_grad_()
    clamped_swiglu(x, LIMIT).sum().backward()
    assert x.grad is not None
    assert (x.grad[:7] != 0).tolist() == [True, False, True, True, True, True, True]
    assert (x.grad[7:] != 0).tolist() == [True, True, True, True, False, True, False]


def test_nan_is_not_clamped_away() -> None:
    x = torch.full((1, 4), float("nan"), requires_grad=True)
    y = clamped_swiglu(x, LIMIT)
    y.sum().backward()
    assert x.grad is not None
    assert y.isnan().all() and x.grad.isnan().all()


def test_rows_of_a_wider_tensor() -> None:
    wide = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(clamped_swiglu(wide[:, 4:20], LIMIT), clamped_swiglu(wide[:, 4:20].clone(), LIMIT))


def test_fits_the_gpus() -> None:
    variants = []
    for dtype in ("bf16", "fp32"):
        for name, pointers in (("forward", ("gate_up", "y")), ("backward", ("gate_up", "d_y", "d"))):
            types = {f"{p}_ptr": f"*{dtype}" for p in pointers} | {"width": "i32:16", "limit": "fp32"}
            kernel = f"genoctx_kernels.swiglu.triton_swiglu:{name}_kernel"
            variants.append(Variant(kernel, types, {"COLUMNS": COLUMNS}, label=dtype))
    assert_fits(variants)
