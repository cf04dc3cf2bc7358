"""Norms and gates whose gradients are by hand, beside their equations and autograd's own gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from genoctx.model.gates import gated_norm, log_decay
from genoctx.model.norms import RMSNorm, l2_normalise

HEADS, WIDTH, EPS = 4, 8, 1e-5
Op = Callable[..., Tensor]


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads_first(tokens: int) -> Tensor:
    """[B, T, H, K] as the recurrence returns it."""
    return draw(2, HEADS, tokens, WIDTH, seed=0).transpose(1, 2)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    norm = RMSNorm(x.shape[-1], EPS)
    del norm.weight
    norm.weight = weight  # type: ignore[assignment]
    return norm(x)


def rms_equation(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def l2_equation(x: Tensor) -> Tensor:
    return 0.3 * x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def log_decay_equation(f: Tensor, dt_bias: Tensor, a_log: Tensor) -> Tensor:
    rate = a_log.exp().unsqueeze(-1)
    return -5 * torch.sigmoid(rate * (f + dt_bias).unflatten(-1, (HEADS, WIDTH)))


def gated_equation(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return (rms_equation(x, weight) * gate.unflatten(-1, (HEADS, WIDTH)).sigmoid()).flatten(-2)


def cases(tokens: int) -> dict[str, tuple[Op, Op, list[Tensor]]]:
    inner = HEADS * WIDTH
    x = draw(2, tokens, inner, seed=1)
    bias, a_log, weight = draw(inner, seed=2), draw(HEADS, seed=3), draw(WIDTH, seed=4)
    return {
        "rms": (rms, rms_equation, [x, draw(inner, seed=5)]),
        "l2": (partial(l2_normalise, scale=0.3), l2_equation, [heads_first(tokens)]),
        "log decay": (partial(log_decay, bound=-5.0), log_decay_equation, [x, bias, a_log]),
        "gated norm": (partial(gated_norm, eps=EPS), gated_equation, [heads_first(tokens), x, weight]),
    }


def outputs_and_gradients(op: Op, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    out = op(*leaves)
    share = draw(*out.shape, seed=9).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, share)]


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a.double() - b.double()).abs().max().item() / b.double().abs().max().item() if b.numel() else 0.0


@pytest.mark.parametrize("name", cases(1))
@pytest.mark.parametrize("tokens", [1, 17])
def test_equal_to_the_equation_in_float64(name: str, tokens: int) -> None:
    op, equation, inputs = cases(tokens)[name]
    ours, theirs = (outputs_and_gradients(f, inputs, torch.float64) for f in (op, equation))
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert difference(a, b) < 1e-10, f"tensor {i}: {difference(a, b):.2e}"


@pytest.mark.parametrize("name", cases(1))
def test_error_in_float32_is_at_most_twice_that_of_plain_torch(name: str) -> None:
    op, equation, inputs = cases(200)[name]
    exact = outputs_and_gradients(equation, inputs, torch.float64)
    ours, plain = (outputs_and_gradients(f, inputs, torch.float32) for f in (op, equation))
    for i, (e, a, p) in enumerate(zip(exact, ours, plain, strict=True)):
        bound = max(2 * difference(p, e), 4 * torch.finfo(torch.float32).eps)
        assert difference(a, e) <= bound, f"tensor {i}: {difference(a, e):.2e} > {bound:.2e}"


@pytest.mark.parametrize("name", cases(1))
def test_low_precision_keeps_its_dtypes(name: str) -> None:
    """bfloat16 in, statistics in float32; every gradient comes back in the dtype of its input."""
    op, equation, inputs = cases(17)[name]
    out, *gradients = outputs_and_gradients(op, inputs, torch.bfloat16)
    assert out.dtype == (torch.float32 if name in ("l2", "log decay") else torch.bfloat16)
    assert all(g.dtype == torch.bfloat16 for g in gradients)
    exact = outputs_and_gradients(equation, [x.bfloat16() for x in inputs], torch.float64)
    for a, b in zip((out, *gradients), exact, strict=True):
        assert difference(a, b) < 0.02


@pytest.mark.parametrize("name", cases(1))
def test_no_tokens(name: str) -> None:
    """What a rank with an empty piece of a chunk computes."""
    op, _, inputs = cases(0)[name]
    _, *gradients = outputs_and_gradients(op, inputs, torch.float32)
    assert all(g.shape == x.shape and not g.any() for g, x in zip(gradients, inputs, strict=True))


@pytest.mark.parametrize("name", cases(1))
def test_later_tokens_change_no_bit_of_earlier_ones(name: str) -> None:
    op, _, inputs = cases(65)[name]
    tokens = [x.float() for x in inputs if x.ndim > 2]
    weights = [x.float() for x in inputs if x.ndim <= 2]
    whole = op(*tokens, *weights)
    for cut in (1, 2, 7, 33, 64):
        assert torch.equal(op(*(x[:, :cut] for x in tokens), *weights), whole[:, :cut])


@pytest.mark.parametrize("name", cases(1))
def test_frozen_weights_leave_the_gradient_of_the_tokens_alone(name: str) -> None:
    """Adapters train while the weights of norms and gates stand still."""
    op, _, inputs = cases(9)[name]
    trained = outputs_and_gradients(op, inputs, torch.float64)[1]
    leaf = inputs[0].clone().requires_grad_()
    out = op(leaf, *inputs[1:])
    (frozen,) = torch.autograd.grad(out, leaf, draw(*out.shape, seed=9))
    assert torch.equal(frozen, trained)
