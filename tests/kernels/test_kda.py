"""KDA in blocks against the token-by-token recurrence."""

from __future__ import annotations

import pytest
import torch
from compare import assert_equal_in_float64, assert_error_bound, relative, run
from torch import Tensor

from genoctx_kernels.kda import kda
from genoctx_kernels.kda.reference import kda_reference


def inputs(
    tokens: int, gates: str = "mixed", batch: int = 2, heads: int = 3, key: int = 8, value: int = 6
) -> list[Tensor]:
    g = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(batch, tokens, heads, key), dim=-1) for _ in range(2))
    decay = -5 * torch.sigmoid(2 * draw(batch, tokens, heads, key))
    if gates == "pinned":
        decay = torch.full_like(decay, -5.0)
    if gates == "open":
        decay = torch.full_like(decay, -1e-4)
    if gates == "same keys":  # poly-A: the hardest case for the triangular solve
        decay, k = torch.full_like(decay, -1e-3), k[:, :1].expand_as(k).contiguous()
    beta = (
        torch.sigmoid(draw(batch, tokens, heads))
        if gates != "same keys"
        else torch.ones(batch, tokens, heads).double()
    )
    return [q * key**-0.5, k, draw(batch, tokens, heads, value), decay, beta, draw(batch, heads, key, value)]


@pytest.mark.parametrize("gates", ["mixed", "pinned", "open", "same keys"])
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 63, 64, 65, 100, 257])
def test_float64_outputs_state_and_all_gradients(tokens: int, gates: str) -> None:
    assert_equal_in_float64(kda, kda_reference, inputs(tokens, gates))


@pytest.mark.parametrize("gates", ["mixed", "pinned", "open", "same keys"])
@pytest.mark.parametrize("tokens", [63, 100, 257])
def test_float32_is_accurate(tokens: int, gates: str) -> None:
    """Spec section 8: 4e-6 relative for gradients, 4e-5 for dg when all gates saturate."""
    exact = run(kda_reference, inputs(tokens, gates))
    fast = run(kda, [x.float() for x in inputs(tokens, gates)])
    for i, (a, b) in enumerate(zip(fast, exact, strict=True)):
        assert torch.isfinite(a).all()
        assert relative(a, b) <= (2e-4 if gates == "pinned" and i == 5 else 2e-5), i


@pytest.mark.parametrize("tokens", [63, 100])
def test_bfloat16_error_bound(tokens: int) -> None:
    def in_float32(op):  # type: ignore[no-untyped-def]
        return lambda *xs: tuple(op(*(x.float() for x in xs)))

    assert_error_bound(kda, in_float32(kda_reference), inputs(tokens), torch.bfloat16)


@pytest.mark.parametrize("cut", [1, 30, 64, 99])
def test_state_continues_across_a_cut(cut: int) -> None:
    def in_two(q, k, v, g, beta, state):  # type: ignore[no-untyped-def]
        first, state = kda(*(x[:, :cut] for x in (q, k, v, g, beta)), state)
        second, state = kda(*(x[:, cut:] for x in (q, k, v, g, beta)), state)
        return torch.cat((first, second), 1), state

    assert_equal_in_float64(in_two, kda_reference, inputs(100))


@pytest.mark.parametrize("prefix", [*range(1, 68), 77, 100, 129])
def test_later_tokens_change_no_earlier_bit(prefix: int) -> None:
    xs = [x.float() for x in inputs(130)]
    changed = [x.clone() for x in xs]
    for x in changed[:5]:
        x[:, prefix:] = x[:, prefix:] * 0.5
    assert torch.equal(kda(*xs)[0][:, :prefix], kda(*changed)[0][:, :prefix])
