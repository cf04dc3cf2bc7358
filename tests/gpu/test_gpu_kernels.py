"""Every Triton kernel on the GPU: the design's error bound for outputs and all gradients, at ragged lengths."""

from __future__ import annotations

import pytest
import torch
from compare import assert_error_bound
from gpu_cases import CASES, DEVICE, attention_case, draw

from genoctx_kernels.dispatch import chosen
from genoctx_kernels.dsa import select_pools
from genoctx_kernels.dsa.reference import index_scores_reference, select_reference


@pytest.mark.parametrize("tokens", [1, 63, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", CASES)
def test_error_bound(op: str, dtype: torch.dtype, tokens: int) -> None:
    case = CASES[op](tokens)
    assert_error_bound(case.op, case.plain, case.inputs, dtype)
    chosen.clear()
    case.op(*(x.to(dtype) for x in case.inputs))
    assert all(choice.triton == (DEVICE == "cuda") for choice in chosen.values()), chosen


@pytest.mark.parametrize("tokens", [63, 2100])
def test_attention_over_latents_of_the_real_model(tokens: int) -> None:
    """64 heads, 512 wide, up to 512 pools of 4 a query, bfloat16: what float32 runs in plain torch."""
    case = attention_case(tokens, heads=64, width=512, top=2048)
    assert_error_bound(case.op, case.plain, case.inputs, torch.bfloat16)
    chosen.clear()
    case.op(*(x.bfloat16() for x in case.inputs))
    assert chosen["dsa_attention"].triton == (DEVICE == "cuda"), chosen


@pytest.mark.parametrize("op", CASES)
def test_backward_is_deterministic(op: str) -> None:
    case = CASES[op](1000)
    low = [x.bfloat16().requires_grad_() for x in case.inputs]

    def gradients() -> tuple[torch.Tensor, ...]:
        out = case.op(*low)
        outs = out if isinstance(out, tuple) else (out,)
        return torch.autograd.grad([o.float().square().sum() for o in outs], low, allow_unused=True)

    for a, b in zip(gradients(), gradients(), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("heads,width", [(8, 64), (32, 64)])
@pytest.mark.parametrize(
    "tokens,pools,first", [(1000, 250, 0), (257, 4096, 16384 - 257), (63, 20000, 80000 - 63)]
)
def test_selection_is_the_total_order(tokens: int, pools: int, first: int, heads: int, width: int) -> None:
    """Small integers have exact scores (1 / sqrt(64) is a power of two) and many ties."""
    pool, top = 4, 512
    q, w, keys = (
        (2 * draw(*shape, seed=i)).round().float()
        for i, shape in enumerate([(tokens, heads, width), (tokens, heads), (pools, width)])
    )
    found = select_pools(q, w, keys, first, pool, top)
    expected = select_reference(index_scores_reference(q, w, keys), pool, top, first)
    assert torch.equal(found.long().cpu(), expected.long().cpu())
