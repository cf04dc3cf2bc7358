"""An op against its reference: outputs and every gradient, and the error bound for low precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Op = Callable[..., Tensor | tuple[Tensor, ...]]


def run(op: Op, inputs: Sequence[Tensor], weights: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Outputs of ``op``, then the gradients of sum(outputs * weights) in all inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = op(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if weights is None:
        generator = torch.Generator().manual_seed(1)
        weights = [
            torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device) for o in outputs
        ]
    loss = sum((o.double() * w).sum() for o, w in zip(outputs, weights, strict=True))
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True)]
    return [o.detach() for o in outputs] + zeros


def relative(a: Tensor, b: Tensor) -> float:
    """max |a - b| over max |b|."""
    size = b.double().abs().max().item() if b.numel() else 0.0
    return (a.double() - b.double()).abs().max().item() / (size or 1.0) if b.numel() else 0.0


def assert_equal_in_float64(op: Op, reference: Op, inputs: Sequence[Tensor], limit: float = 1e-10) -> None:
    """Outputs and all gradients of both in float64, to ``limit`` relative."""
    for i, (a, b) in enumerate(zip(run(op, inputs), run(reference, inputs), strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert relative(a, b) <= limit, f"tensor {i}: {relative(a, b):.2e}"


def assert_error_bound(op: Op, reference: Op, inputs: Sequence[Tensor], dtype: torch.dtype) -> None:
    """The design's bound: error of ``op`` in ``dtype`` <= twice that of the plain reference in ``dtype``.

    Both against the reference in float64. Where the reference happens to be exact, a few units in
    the last place of ``dtype`` are allowed.
    """
    exact = run(reference, inputs)
    low = [x.to(dtype) for x in inputs]
    fast, plain = run(op, low), run(reference, low)
    floor = 4 * torch.finfo(dtype).eps
    for i, (e, f, p) in enumerate(zip(exact, fast, plain, strict=True)):
        assert relative(f, e) <= max(2 * relative(p, e), floor), (
            f"tensor {i}: {relative(f, e)} > 2 * {relative(p, e)}"
        )
