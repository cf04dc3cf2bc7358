"""KDA in blocks against the token-by-token recurrence."""

from __future__ import annotations

import pytest
import torch
from compare import assert_equal_in_float64, assert_error_bound, relative, run
from torch import Tensor

from genoctx_kernels.kda import kda
from genoctx_kernels.kda.inverse import unit_lower_inverse
from genoctx_kernels.kda.op import block_width
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


@pytest.mark.parametrize("key", [8, 40])
@pytest.mark.parametrize("prefix", [*range(1, 68), 77, 100, 129])
def test_later_tokens_change_no_earlier_bit(prefix: int, key: int) -> None:
    xs = [x.float() for x in inputs(130, key=key)]
    changed = [x.clone() for x in xs]
    for x in changed[:5]:
        x[:, prefix:] = x[:, prefix:] * 0.5
    assert torch.equal(kda(*xs)[0][:, :prefix], kda(*changed)[0][:, :prefix])


@pytest.mark.parametrize("gates", ["mixed", "pinned"])
def test_gradients_as_small_as_those_of_a_mean_over_a_million_tokens_keep_their_digits(gates: str) -> None:
    """Columns of the narrowest squares grow, their rows shrink: nothing may fall out of float32's range."""
    exact = inputs(100, gates, key=32)
    weights = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double() for x in exact[2::3]]
    right = run(kda_reference, exact, weights)[2:]
    small = run(kda, [x.float() for x in exact], [2.0**-44 * w for w in weights])[2:]
    for i, (a, b) in enumerate(zip(small, right, strict=True)):
        assert relative(2.0**44 * a, b) <= (2e-4 if gates == "pinned" and i == 3 else 2e-5), i


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("entries", ["random", "ones"])
def test_inverse_of_a_unit_lower_matrix(block: int, entries: str) -> None:
    generator = torch.Generator().manual_seed(block)
    a = 0.3 * torch.randn(2, 3, block, block, generator=generator, dtype=torch.float64)
    a = torch.ones_like(a) if entries == "ones" else a  # poly-A without decay
    right = torch.linalg.inv(a.tril(-1) + torch.eye(block))
    assert relative(unit_lower_inverse(a), right) <= 1e-10
    assert not unit_lower_inverse(a).triu(1).any()
    if entries == "ones":
        assert relative(unit_lower_inverse(a.float()), right) == 0


@pytest.mark.parametrize("key", [8, 40])
def test_blocks_of_both_widths(key: int) -> None:
    """Keys above 32 get blocks of 64 tokens."""
    assert block_width(200, key) == (32 if key == 8 else 64)
    assert_equal_in_float64(kda, kda_reference, inputs(150, key=key))


def test_a_last_state_holds_no_more_than_itself() -> None:
    """It is kept once a chunk and layer; a view would keep the states of all blocks."""
    state = kda(*inputs(130))[1]
    assert state.untyped_storage().nbytes() == state.nbytes
