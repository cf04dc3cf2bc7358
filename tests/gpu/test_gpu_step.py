"""Whole training steps on the GPU: streamed = whole in float64, and float32 kernels beside float64 on the CPU."""

from __future__ import annotations

import torch
from gpu_cases import DEVICE
from torch import Tensor

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients, Denominators
from genoctx.engine.selftest import compare
from genoctx.engine.stream import train_window
from genoctx.model.block import Objectives
from genoctx.model.hybrid import Hybrid, build

CUTS = [(0, 63), (63, 64), (64, 250)]


def batch(tokens: int) -> Batch:
    ids = torch.randint(0, 4, (1, tokens), generator=torch.Generator().manual_seed(0))
    targets = torch.roll(ids, -1, 1)
    targets[:, -1] = -100
    return Batch(ids, targets, ("random",))


def test_streamed_is_whole_in_float64() -> None:
    objectives = Objectives(balance=True, kl_mode="sparse")
    model = build(preset_model("micro"), dtype=torch.float64, device=DEVICE, objectives=objectives, seed=0)
    found = compare(model, [batch(250)], [CUTS], Coefficients(0.01, 0.1))
    assert found.gradient <= 1e-10 and found.loss <= 1e-10


def gradients(dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Of one streamed step, as float64 on the host. Weights are the same on every device."""
    model: Hybrid = build(preset_model("nano"), dtype=dtype, device=device, seed=0)
    one = batch(250)  # no longer than index_topk: everything is selected, whatever rounding does
    train_window(model, one, CUTS, Coefficients(), Denominators.of([one], model.config.index_kpool))
    return {n: p.grad.double().cpu() for n, p in model.named_parameters() if p.grad is not None}


def test_float32_kernels_are_as_near_to_float64_as_plain_torch() -> None:
    exact = gradients(torch.float64, "cpu")
    plain, fast = gradients(torch.float32, "cpu"), gradients(torch.float32, DEVICE)
    assert exact.keys() == plain.keys() == fast.keys()

    def error(found: dict[str, Tensor]) -> float:
        squares = [
            (found[n] - exact[n]).square().sum() / exact[n].square().sum().clamp_min(1e-30) for n in exact
        ]
        return float(torch.stack(squares).mean().sqrt())

    assert error(fast) <= max(2 * error(plain), 1e-5)
