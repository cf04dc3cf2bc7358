"""Routed experts against every expert on every token, and where the plan puts the pairs."""

from __future__ import annotations

import pytest
import torch
from compare import assert_equal_in_float64, assert_error_bound
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from genoctx_kernels.moe import Pair, op, routed_experts
from genoctx_kernels.moe.op import OCTAVE, ROWS, padded_rows
from genoctx_kernels.moe.plan import make_plan
from genoctx_kernels.moe.reference import routed_experts_reference


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def choose_experts(tokens: int, experts: int, choices: int, seed: int = 0) -> Tensor:
    """Different experts for each token, int64 [tokens, choices]."""
    g = torch.Generator().manual_seed(seed)
    return torch.rand(tokens, experts, generator=g).argsort(1)[:, :choices].contiguous()


@pytest.mark.parametrize("tokens,experts,choices", [(1, 3, 1), (7, 5, 2), (63, 4, 4), (40, 30, 2)])
def test_outputs_and_gradients(tokens: int, experts: int, choices: int) -> None:
    chosen = choose_experts(tokens, experts, choices)
    inputs = [draw(tokens, 6), draw(tokens, choices, seed=1)]
    inputs += [3 * draw(experts, 10, 6, seed=2), draw(experts, 6, 5, seed=3)]
    assert_equal_in_float64(
        lambda x, w, gate_up, down: routed_experts(x, chosen, w, gate_up, down, 2.0),
        lambda x, w, gate_up, down: routed_experts_reference(x, chosen, w, gate_up, down, 2.0),
        inputs,
    )


@given(count=st.integers(1, 10**7))
def test_groups_are_padded_to_few_numbers_of_rows(count: int) -> None:
    rows = padded_rows(count)
    assert count <= rows < count + max(ROWS, count / OCTAVE + 1)
    assert rows % ROWS == 0 and padded_rows(rows) == rows


def test_an_octave_has_few_numbers_of_rows() -> None:
    assert len({padded_rows(count) for count in range(513, 1025)}) == OCTAVE


@pytest.mark.parametrize("tokens", [1, 16, 17, 100, 255])
def test_later_tokens_change_no_bit_of_earlier_ones(tokens: int) -> None:
    x, weights, chosen = draw(300, 64).float(), draw(300, 2, seed=1).float(), choose_experts(300, 3, 2)
    gate_up, down = draw(3, 64, 64, seed=2).float(), draw(3, 64, 32, seed=3).float()
    whole = routed_experts(x, chosen, weights, gate_up, down, 2.0)
    part = routed_experts(x[:tokens], chosen[:tokens], weights[:tokens], gate_up, down, 2.0)
    assert torch.equal(part, whole[:tokens])


@pytest.mark.parametrize("tokens", [37, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_as_exact_as_the_reference(tokens: int, dtype: torch.dtype) -> None:
    """Padding and partial sums over tokens included; 1,500 tokens are more than are summed at a time."""
    chosen = choose_experts(tokens, 2, 2)
    inputs = [draw(tokens, 6), draw(tokens, 2, seed=1), draw(2, 10, 6, seed=2), draw(2, 6, 5, seed=3)]
    assert_error_bound(
        lambda x, w, gate_up, down: routed_experts(x, chosen, w, gate_up, down, 2.0),
        lambda x, w, gate_up, down: routed_experts_reference(x, chosen, w, gate_up, down, 2.0),
        inputs,
        dtype,
    )


@given(
    tokens=st.integers(1, 60),
    experts=st.integers(1, 9),
    choices=st.integers(1, 3),
    tile=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 10**6),
)
def test_plan(tokens: int, experts: int, choices: int, tile: int, seed: int) -> None:
    """Every pair has its own row in a tile of its expert, in token order; the rest is padding."""
    chosen = choose_experts(tokens, experts, min(choices, experts), seed)
    plan = make_plan(chosen, experts, tile)
    rows = plan.row_MA.flatten()
    assert len(rows.unique()) == len(rows) and rows.max() < len(plan.token_R) == tile * len(plan.expert_S)
    assert torch.equal(plan.expert_S[rows // tile], chosen.flatten().to(torch.int32))
    of_token = torch.arange(tokens).repeat_interleave(chosen.shape[1])
    assert torch.equal(plan.token_R[rows], of_token.to(torch.int32))
    assert (plan.token_R >= 0).sum() == len(rows)
    for e in range(experts):
        first, count = int(plan.first_E[e]), int(plan.count_E[e])
        assert first % tile == 0
        assert (
            plan.token_R[first : first + count].tolist() == (chosen == e).any(1).nonzero().flatten().tolist()
        )
    used = sum(-(-count // tile) for count in plan.count_E.tolist())
    assert (plan.expert_S[used:] == experts).all() and (plan.expert_S[:used] < experts).all()


def pairs(experts: int, hidden: int, width: int, rank: int = 3) -> list[Tensor]:
    """A and B of gate and up, A and B of down."""
    shapes = [(rank, hidden), (2 * width, rank), (rank, width), (hidden, rank)]
    return [draw(experts, *shape, seed=5 + i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("tokens,experts,choices", [(1, 3, 1), (63, 4, 4), (40, 30, 2)])
def test_adapters_are_added_to_the_weights(
    tokens: int, experts: int, choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups larger than the rows that are summed at a time included."""
    monkeypatch.setattr(op, "SUMMED", 32)
    chosen = choose_experts(tokens, experts, choices)
    inputs = [draw(tokens, 6), draw(tokens, choices, seed=1)]
    inputs += [3 * draw(experts, 10, 6, seed=2), draw(experts, 6, 5, seed=3), *pairs(experts, 6, 5)]
    assert_equal_in_float64(
        lambda x, w, gate_up, down, a, b, c, d: routed_experts(
            x, chosen, w, gate_up, down, 2.0, Pair(a, b), Pair(c, d)
        ),
        lambda x, w, gate_up, down, a, b, c, d: routed_experts_reference(
            x, chosen, w, gate_up + b @ a, down + d @ c, 2.0
        ),
        inputs,
    )
