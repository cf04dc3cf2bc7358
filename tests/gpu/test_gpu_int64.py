"""Past 2^31 elements: one long call equals the same sequence in pieces that stay below.

300,000 tokens x 64 heads x 128 are 2.46e9 elements. An address in 32 bits would wrap, and these tests are red.
"""

from __future__ import annotations

import gc

import pytest
import torch
from gpu_cases import DEVICE
from torch import Tensor

from genoctx_kernels.conv import short_conv
from genoctx_kernels.kda import kda
from genoctx_kernels.mhc import mhc_mix
from genoctx_kernels.swiglu import clamped_swiglu

REAL = DEVICE == "cuda"
TOKENS, HEADS, WIDTH = (300_000, 64, 128) if REAL else (3000, 2, 32)
CUTS = (TOKENS // 2, TOKENS - 1000)
SEED = 7


def need(gib: int) -> None:
    """Fail, and say so, on a card that is too small for what is proven here."""
    if not REAL:
        return
    gc.collect()
    torch.cuda.empty_cache()  # what earlier tests held counts as taken otherwise
    if (free := torch.cuda.mem_get_info()[0] / 2**30) < gib:
        pytest.fail(f"needs {gib} GiB of free GPU memory, {free:.0f} are free: run on a larger card")


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


def assert_near(a: Tensor, b: Tensor, tolerance: float) -> None:
    """Within a share of one, or of the largest number where that is less: some gradients are small throughout."""
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * min(1.0, float(b.abs().max())))


def kda_inputs() -> list[Tensor]:
    torch.manual_seed(SEED)
    shape = (1, TOKENS, HEADS, WIDTH)
    q, k, v = (random(*shape) for _ in range(3))
    q.mul_(1 / WIDTH)
    k.mul_(WIDTH**-0.5)
    g = random(*shape).sigmoid_().mul_(-5)
    return [q, k, v, g, torch.rand(1, TOKENS, HEADS, device=DEVICE).bfloat16()]


def test_kda_forward() -> None:
    need(60)
    inputs = kda_inputs()
    state = torch.zeros(1, HEADS, WIDTH, WIDTH, device=DEVICE)
    with torch.no_grad():
        whole, last = kda(*inputs, state)
        start = 0
        for end in (*CUTS, TOKENS):
            part, state = kda(*(x[:, start:end] for x in inputs), state)
            # cuts are no multiples of a block, so sums have another order
            assert_near(whole[:, start:end][:, -1000:], part[:, -1000:], 2e-2)
            start = end
        assert_near(last, state, 2e-2)


def test_kda_backward() -> None:
    """Gradients of the last tokens, which lie past 2^31, against those of the last piece alone."""
    need(64)
    inputs = kda_inputs()
    state = torch.zeros(1, HEADS, WIDTH, WIDTH, device=DEVICE)
    tail = slice(CUTS[1], TOKENS)
    for x in inputs:
        x.requires_grad_()
    out, _ = kda(*inputs, state)
    whole = torch.autograd.grad(out[:, tail].float().square().sum(), inputs)
    kept = [d[:, tail].clone() for d in whole]
    del out, whole
    with torch.no_grad():
        for start, end in ((0, CUTS[0]), CUTS):
            _, state = kda(*(x[:, start:end] for x in inputs), state)
    leaves = [x.detach()[:, tail].clone().requires_grad_() for x in inputs]
    out, _ = kda(*leaves, state)
    for a, b in zip(kept, torch.autograd.grad(out.float().square().sum(), leaves), strict=True):
        assert_near(a, b, 5e-2)


def test_short_convolution() -> None:
    need(20)
    torch.manual_seed(SEED)
    x, w = random(1, TOKENS, HEADS * WIDTH), random(HEADS * WIDTH, 4)
    with torch.no_grad():
        whole, _ = short_conv(x, w, x.new_zeros(1, 3, HEADS * WIDTH))
        part, _ = short_conv(x[:, CUTS[1] :], w, x[:, CUTS[1] - 3 : CUTS[1]])
    assert torch.equal(whole[:, CUTS[1] :], part)


def test_hyper_connection() -> None:
    need(30)
    torch.manual_seed(SEED)
    tokens, hidden = (140_000, 4096) if REAL else (3000, 64)
    inputs = [random(tokens, 4, hidden), random(tokens, hidden)]
    inputs += [random(tokens, 4, dtype=torch.float32), random(tokens, 4, 4, dtype=torch.float32)]
    with torch.no_grad():
        whole = mhc_mix(*inputs)
        part = mhc_mix(*(x[-1000:] for x in inputs))
    assert torch.equal(whole[-1000:], part)


def test_swiglu() -> None:
    need(30)
    torch.manual_seed(SEED)
    x = random(600_000 if REAL else 3000, 4096 if REAL else 64)
    with torch.no_grad():
        assert torch.equal(clamped_swiglu(x, 2.0)[-1000:], clamped_swiglu(x[-1000:].clone(), 2.0))
