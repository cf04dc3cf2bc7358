"""The scans of a piece in Triton's interpreter, against the token-by-token map."""

from __future__ import annotations

import pytest
import torch
from compare import relative
from test_triton_kda import inputs

from genoctx_kernels.kda import piece_map, state_gradient, triton_kda
from genoctx_kernels.kda.reference import kda_reference, piece_map_reference


@pytest.mark.usefixtures("on_triton")
@pytest.mark.parametrize(("tokens", "units"), [(1, 4096), (64, 4096), (64, 2)])
def test_map_and_gradient(tokens: int, units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``units`` 2: every block is a segment of its own, and the state goes from one to the next."""
    monkeypatch.setattr(triton_kda, "UNITS", units)
    q, k, v, g, beta, state = inputs(tokens, "open")  # with other gates A underflows
    low = [x.float() for x in (q, k, v, g, beta)]
    for found, right in zip(piece_map(*low[1:]), piece_map_reference(k, v, g, beta), strict=True):
        assert found.dtype == torch.float32 and relative(found, right) <= 1e-5
    state.requires_grad_()
    out, _ = kda_reference(q, k, v, g, beta, state)
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = torch.autograd.grad((out * d_out).sum(), state)[0]
    found = state_gradient(low[0], low[1], low[3], low[4], d_out.float())
    assert relative(found, right) <= 1e-5
