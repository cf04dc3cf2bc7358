"""The convolution in Triton's interpreter: outputs, all gradients, tails, and that it fits the GPUs."""

from __future__ import annotations

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound
from torch import Tensor

from genoctx_kernels.conv import short_conv, triton_conv
from genoctx_kernels.conv.reference import short_conv_reference

MODULE = "genoctx_kernels.conv.triton_conv"
FORWARD = {"W": 4, "BT": triton_conv.TOKENS, "BC": triton_conv.CHANNELS}
BACKWARD = {**FORWARD, "WIDE": 4, "BT": triton_conv.BACKWARD_TOKENS, "STEPS": triton_conv.STEPS}

pytestmark = pytest.mark.usefixtures("on_triton")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, and several backward programs, even at these sizes."""
    monkeypatch.setattr(triton_conv, "CHANNELS", 4)
    monkeypatch.setattr(triton_conv, "STEPS", 2)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(tokens: int, width: int = 4) -> list[Tensor]:
    return [draw(2, tokens, 5), draw(5, width, seed=1), draw(2, width - 1, 5, seed=2)]


def convolve(*x: Tensor) -> Tensor:
    return short_conv(*x)[0]


@pytest.mark.parametrize("tokens", [1, 2, 3, 63, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients(tokens: int, dtype: torch.dtype) -> None:
    assert_error_bound(convolve, short_conv_reference, inputs(tokens), dtype)


@pytest.mark.parametrize("width", [2, 3])
def test_other_widths(width: int) -> None:
    assert_error_bound(convolve, short_conv_reference, inputs(40, width), torch.float32)


def test_a_slice_of_a_wider_projection_and_a_held_float32_weight() -> None:
    x, w, tail = (t.float() for t in inputs(40))
    wide = torch.cat((x, x), -1).bfloat16()[..., 2:7]
    assert wide.stride(1) == 10 and not wide.is_contiguous()
    expected = short_conv_reference(wide, w, tail.bfloat16())
    got = convolve(wide, w, tail.bfloat16())
    assert got.dtype == torch.bfloat16
    assert (got.float() - expected.float()).abs().max() <= expected.abs().max() * 2**-7


@pytest.mark.parametrize("cut", [1, 2, 33])
def test_the_tail_continues_bit_for_bit(cut: int) -> None:
    x, w, tail = (t.float() for t in inputs(40))
    whole, last = short_conv(x, w, tail)
    first, middle = short_conv(x[:, :cut], w, tail)
    second, end = short_conv(x[:, cut:], w, middle)
    assert torch.equal(torch.cat((first, second), 1), whole) and torch.equal(end, last)


def test_fits_the_gpus() -> None:
    pointers = ("x_ptr", "tail_ptr", "w_ptr", "dy_ptr", "dx_ptr", "dtail_ptr", "dw_ptr", "y_ptr")
    sizes = {"tokens": "i32", "channels": "i32:16", "x_batch_stride": "i64:16", "x_stride": "i32:16"}
    variants = []
    for dtype in ("bf16", "fp32"):
        types = dict.fromkeys(pointers, f"*{dtype}") | {"w_ptr": "*fp32", "dw_ptr": "*fp32"}
        forward = {k: types[k] for k in ("x_ptr", "tail_ptr", "w_ptr", "y_ptr")} | sizes
        backward = {k: types[k] for k in pointers[:-1]} | sizes
        backward |= {"dy_batch_stride": "i64:16", "dy_stride": "i32:16"}
        variants.append(Variant(f"{MODULE}:forward_kernel", forward, FORWARD, label=dtype))
        variants.append(Variant(f"{MODULE}:backward_kernel", backward, BACKWARD, label=dtype))
    assert_fits(variants)
