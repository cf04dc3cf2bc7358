"""Products through oneDNN against those of torch, and rows that do not depend on the rows beside them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compare import assert_equal_in_float64, assert_error_bound
from torch import Tensor

from genoctx_kernels import product as products
from genoctx_kernels.product import linear, product, relu_product


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(0, 7), (1, 7), (3, 7), (40, 7), (2, 3, 7), (7,)])
def test_linear(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SUMMED", 16)
    inputs = [draw(*shape), draw(5, 7, seed=1)]
    assert_equal_in_float64(linear, F.linear, inputs)
    if len(shape) > 1:
        assert_error_bound(linear, F.linear, inputs, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_and_the_fused_clamp(dtype: torch.dtype) -> None:
    x, weight = draw(7, 6).to(dtype), draw(7, 5, seed=1).to(dtype)
    wide, one = draw(6, 14).to(dtype), draw(1, 7).to(dtype)
    for rows in (x.mT, wide[:, ::2], one.expand(6, -1)):
        expected = rows.double() @ weight.double()
        assert (product(rows, weight.mT).double() - expected).abs().max() < 1e-5
        assert (relu_product(rows, weight.mT).double() - expected.clamp_min(0)).abs().max() < 1e-5


@pytest.mark.parametrize("inner,outputs", [(128, 256), (32, 256), (64, 128), (20, 12), (260, 65)])
def test_a_row_does_not_depend_on_how_many_there_are(inner: int, outputs: int) -> None:
    x, weight = draw(600, inner).float(), draw(outputs, inner, seed=1).float()
    whole = product(x, weight)
    for rows in (2, 3, 8, 15, 16, 17, 33, 64, 129, 511):
        for start in (0, 1, 13):
            assert torch.equal(product(x[start : start + rows], weight), whole[start : start + rows])
