"""KDA in Triton's interpreter: outputs, states and all gradients, causality, segments, and that it fits the GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound, relative, run
from torch import Tensor

from genoctx_kernels import dispatch
from genoctx_kernels.kda import kda, triton_backward, triton_blocks, triton_kda, triton_launch, triton_scan
from genoctx_kernels.kda.reference import kda_reference
from genoctx_kernels.kda.triton_kda import kda_triton

KERNELS = [
    k
    for module in (triton_blocks, triton_scan, triton_backward)
    for name, k in vars(module).items()
    if name.endswith("_kernel")
]
NARROW = {"q_ptr", "k_ptr", "v_ptr", "d_q_ptr", "d_k_ptr", "d_v_ptr"}
"""Pointers to tensors in the model's dtype; all others are float32."""

FLOAT32_STACK = 256
"""Bytes of spilled registers a thread that the float32 scans may have; bfloat16 has none anywhere."""


def inputs(
    tokens: int, gates: str = "mixed", batch: int = 1, heads: int = 2, key: int = 32, value: int = 32
) -> list[Tensor]:
    """Six inputs in float64, initial state included. Gates at -5, nearly open, or equal keys as in poly-A."""
    g = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(batch, tokens, heads, key), dim=-1) for _ in range(2))
    decay = -5 * torch.sigmoid(2 * draw(batch, tokens, heads, key))
    beta = torch.sigmoid(draw(batch, tokens, heads))
    if gates == "pinned":
        decay = torch.full_like(decay, -5.0)
    if gates == "open":
        decay = torch.full_like(decay, -1e-4)
    if gates == "same keys":  # the hardest case for the triangular solve
        decay, k, beta = decay * 2e-4, k[:, :1].expand_as(k).contiguous(), torch.ones_like(beta)
    return [q * key**-0.5, k, draw(batch, tokens, heads, value), decay, beta, draw(batch, heads, key, value)]


@pytest.mark.parametrize(
    ("tokens", "gates"),
    [(1, "mixed"), (20, "open"), (63, "same keys"), (100, "pinned"), (257, "mixed")],
)
def test_float32_error_bound(tokens: int, gates: str) -> None:
    """Twice the error of plain torch, which is within 1e-10 of the recurrence in float64 (test_kda.py)."""
    assert_error_bound(kda_triton, kda, inputs(tokens, gates), torch.float32)


def test_widths_that_are_no_power_of_two() -> None:
    assert_error_bound(kda_triton, kda, inputs(5, key=40, value=6), torch.float32)


def test_narrow_inputs_lose_little_but_their_own_rounding() -> None:
    """One float16 input chooses split products and blocks of 64; plain bfloat16 products would round at 2^-9.

    The interpreter truncates to bfloat16 where a GPU rounds, which makes the parts left out four times as big.
    """
    xs = [x.float() for x in inputs(65, "same keys", heads=1)]
    xs[0] = xs[0].half()
    exact = run(kda_reference, [x.double() for x in xs])
    for i, (a, b) in enumerate(zip(run(kda_triton, xs), exact, strict=True)):
        assert relative(a, b) <= (2**-10 if a.dtype == torch.float16 else 2**-11), i


def test_later_tokens_change_no_earlier_bit() -> None:
    """One row of the batch for each length of the common start."""
    kept = torch.tensor([17, 40, 65])
    xs = [x.half() for x in inputs(70, heads=1)]
    rows = [x.expand(len(kept), *x.shape[1:]).clone() for x in xs]
    later = torch.arange(70) >= kept[:, None]
    for x in rows[:5]:
        x[later] = x[later] * 0.5
    expected, changed = kda_triton(*xs)[0], kda_triton(*rows)[0]
    for row, length in enumerate(kept):
        assert torch.equal(changed[row, :length], expected[0, :length]), length
        assert not torch.equal(changed[row, length:], expected[0, length:])


def test_segments_and_strides_move_no_bit_and_inputs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    xs, seen = [x.float() for x in inputs(70, heads=1)], []

    def remembered(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        seen.extend(leaves)
        return kda_triton(*leaves)

    def strided(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        return kda_triton(*(torch.stack((x, x), -1)[..., 0] for x in leaves))

    whole = run(remembered, xs)
    assert all(torch.equal(a, b) for a, b in zip(seen, xs, strict=True))
    monkeypatch.setattr(triton_kda, "UNITS", 2)
    assert all(torch.equal(a, b) for a, b in zip(run(strided, xs), whole, strict=True))


@pytest.mark.usefixtures("on_triton")
def test_the_op_dispatches() -> None:
    xs = [x.float() for x in inputs(5)]
    assert torch.equal(kda(*xs)[0], kda_triton(*xs)[0])
    assert dispatch.chosen["kda"].triton
    kda(*(x.float() for x in inputs(5, key=130)))
    assert dispatch.chosen["kda"].reason == "keys wider than 128"


def variant(kernel: Any, parts: str, dtype: str) -> Variant:
    """``kernel`` as it is launched for 64 heads of width 128."""
    shape = triton_launch.Shape(64, 128, 128, triton_launch.BLOCKS[parts], parts)
    options = shape.options(kernel)
    types = {
        name: f"*{dtype}" if name in NARROW else "*fp32" if name.endswith("_ptr") else "i32"
        for name in kernel.arg_names
        if name not in options
    }
    constants = {name: options[name] for name in kernel.arg_names if name in options}
    return Variant(
        f"{kernel.fn.__module__}:{kernel.fn.__name__}",
        types,
        constants,
        warps=options["num_warps"],
        stages=options["num_stages"],
        label=parts,
    )


def test_fits_the_gpus() -> None:
    assert len(KERNELS) == 11
    scans = [triton_scan.scan_kernel, triton_scan.scan_back_kernel]
    variants = [variant(k, triton_launch.SPLIT, "bf16") for k in KERNELS]
    variants += [variant(k, triton_launch.IEEE, "fp32") for k in scans]
    built = assert_fits(variants, FLOAT32_STACK)
    assert not [b for b in built if b.label == triton_launch.SPLIT and b.stack]
