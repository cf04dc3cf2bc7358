"""A piece as an affine map of its entering state, and the gradient's way back through it."""

from __future__ import annotations

import pytest
import torch
from compare import assert_equal_in_float64, relative
from test_kda import inputs

from genoctx_kernels.kda import kda, piece_map, state_gradient
from genoctx_kernels.kda.reference import kda_reference, piece_map_reference

LENGTHS = [0, 1, 2, 17, 63, 64, 65, 130]


@pytest.mark.parametrize("gates", ["mixed", "pinned", "open", "same keys"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_map_equals_token_by_token(tokens: int, gates: str) -> None:
    _, k, v, g, beta, state = inputs(tokens, gates)
    found, right = piece_map(k, v, g, beta), piece_map_reference(k, v, g, beta)
    for x, y in zip(found, right, strict=True):
        assert x.shape == y.shape and relative(x, y) <= 1e-10
    last = kda(*inputs(tokens, gates))[1]
    assert relative(found[0] @ state + found[1], last) <= 1e-10


@pytest.mark.parametrize("gates", ["mixed", "pinned", "open", "same keys"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_gradient_of_the_entering_state_is_the_transposed_map(tokens: int, gates: str) -> None:
    q, k, v, g, beta, state = inputs(tokens, gates)
    state.requires_grad_()
    out, last = kda_reference(q, k, v, g, beta, state)
    d_out, d_last = torch.randn_like(out), torch.randn_like(last)
    right = torch.autograd.grad((out * d_out).sum() + (last * d_last).sum(), state)[0]
    a, _ = piece_map(k, v, g, beta)
    assert relative(a.mT @ d_last + state_gradient(q, k, g, beta, d_out), right) <= 1e-10


def test_float32_maps_are_float32_accurate() -> None:
    _, k, v, g, beta, _ = inputs(130, "open")  # with other gates A underflows
    exact = piece_map_reference(k, v, g, beta)
    for x, y in zip(piece_map(*(t.float() for t in (k, v, g, beta))), exact, strict=True):
        # A has decayed below what float32 can say; it multiplies states of size 1
        assert x.dtype == torch.float32 and (x - y).abs().max() <= 1e-5 * max(1.0, float(y.abs().max()))


def test_no_token_is_a_piece_too() -> None:
    """What kda does with it, gradients included: nothing to the state."""
    assert_equal_in_float64(kda, kda_reference, inputs(0))
