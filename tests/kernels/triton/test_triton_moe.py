"""Routed experts in Triton's interpreter: ragged and empty experts, all gradients."""

from __future__ import annotations

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound, relative, run
from torch import Tensor

from genoctx_kernels.moe import Pair, routed_experts, triton_experts, triton_grouped
from genoctx_kernels.moe.reference import routed_experts_reference
from genoctx_kernels.triton_product import FLOAT32, Tile

TENSOR_CORES, COLUMNS = triton_grouped.TENSOR_CORES, triton_experts.COLUMNS
SMALL = Tile(16, 16, 16, warps=4, stages=2)
HIDDEN, WIDTH, LIMIT = 20, 18, 2.0

pytestmark = pytest.mark.usefixtures("on_triton")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_grouped, "FLOAT32", SMALL)
    monkeypatch.setattr(triton_grouped, "TENSOR_CORES", SMALL)
    monkeypatch.setattr(triton_experts, "COLUMNS", 16)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(tokens: int, experts: int, choices: int) -> list[Tensor]:
    return [
        draw(tokens, HIDDEN),
        draw(tokens, choices, seed=1),
        draw(experts, 2 * WIDTH, HIDDEN, seed=2) / 2,
        draw(experts, HIDDEN, WIDTH, seed=3),
    ]


def chosen(tokens: int, experts: int, choices: int) -> Tensor:
    """Different experts for each token; the one but last is chosen by nobody, if there are enough."""
    scores = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(4))
    if experts > choices + 1:
        scores[:, -2] = 2.0
    return scores.argsort(1)[:, :choices].contiguous()


@pytest.mark.parametrize(
    "tokens,experts,choices,dtype",
    [
        (1, 3, 1, torch.float32),
        (63, 5, 2, torch.float32),
        (33, 3, 3, torch.float32),
        (7, 12, 4, torch.float32),
        (33, 5, 2, torch.bfloat16),
    ],
)
def test_outputs_and_gradients(tokens: int, experts: int, choices: int, dtype: torch.dtype) -> None:
    ids = chosen(tokens, experts, choices)
    assert_error_bound(
        lambda x, w, gate_up, down: routed_experts(x, ids, w, gate_up, down, LIMIT),
        lambda x, w, gate_up, down: routed_experts_reference(x, ids, w, gate_up, down, LIMIT),
        [x.bfloat16().double() for x in inputs(tokens, experts, choices)],
        dtype,
    )


@pytest.mark.parametrize("tokens,experts,choices", [(33, 5, 2), (7, 12, 4)])
def test_adapters(tokens: int, experts: int, choices: int) -> None:
    """A pair beside each weight, as the weight plus B A; every gradient but those of the frozen weights."""
    ids, rank = chosen(tokens, experts, choices), 3
    x, w, gate_up, down = inputs(tokens, experts, choices)
    low = [
        draw(experts, rank, HIDDEN, seed=5) / 4,
        draw(experts, 2 * WIDTH, rank, seed=6) / 4,
        draw(experts, rank, WIDTH, seed=7) / 4,
        draw(experts, HIDDEN, rank, seed=8) / 4,
    ]

    def adapted(x: Tensor, w: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        weights = (gate_up.to(x.dtype), down.to(x.dtype))
        return routed_experts(x, ids, w, *weights, LIMIT, Pair(a, b), Pair(c, d))

    def summed(x: Tensor, w: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        weights = (gate_up.to(x.dtype) + b @ a, down.to(x.dtype) + d @ c)
        return routed_experts_reference(x, ids, w, *weights, LIMIT)

    assert_error_bound(adapted, summed, [x, w, *low], torch.float32)


def test_an_expert_without_tokens_gets_a_zero_gradient() -> None:
    x, w, gate_up, down = (v.float().requires_grad_() for v in inputs(25, 5, 2))
    routed_experts(x, chosen(25, 5, 2), w, gate_up, down, LIMIT).sum().backward()
    assert gate_up.grad is not None and down.grad is not None
    assert not gate_up.grad[3].any() and not down.grad[3].any() and gate_up.grad[4].any()


def test_later_tokens_change_no_bit() -> None:
    x, w, gate_up, down = (v.float() for v in inputs(25, 5, 2))
    ids = chosen(25, 5, 2)
    whole = routed_experts(x, ids, w, gate_up, down, LIMIT)
    for tokens in (1, 17):
        part = routed_experts(x[:tokens], ids[:tokens], w[:tokens], gate_up, down, LIMIT)
        assert torch.equal(part, whole[:tokens])


def test_frozen_experts_get_no_gradient() -> None:
    x, w, gate_up, down = (v.float() for v in inputs(25, 5, 2))
    ids = chosen(25, 5, 2)
    x.requires_grad_()
    routed_experts(x, ids, w, gate_up, down, LIMIT).sum().backward()
    exact = x.detach().double().requires_grad_()
    routed_experts_reference(exact, ids, w.double(), gate_up.double(), down.double(), LIMIT).sum().backward()
    assert x.grad is not None and exact.grad is not None and gate_up.grad is None
    assert relative(x.grad, exact.grad) < 1e-6


@pytest.mark.parametrize("which", ["both", "inner", "outer"])
def test_adapters_beside_frozen_experts(which: str) -> None:
    """Outputs and gradients of x, of the weights of the choices and of the adapters."""
    ids, experts, rank = chosen(33, 5, 2), 5, 3
    gate_up, down = inputs(33, experts, 2)[2:]
    leaves = inputs(33, experts, 2)[:2]
    leaves += [draw(experts, rank, HIDDEN, seed=5), draw(experts, 2 * WIDTH, rank, seed=6) / 2]
    leaves += [draw(experts, rank, WIDTH, seed=7), draw(experts, HIDDEN, rank, seed=8)]

    def ours(x: Tensor, w: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        inner, outer = Pair(a, b) if which != "outer" else None, Pair(c, d) if which != "inner" else None
        return routed_experts(x, ids, w, gate_up.to(x.dtype), down.to(x.dtype), LIMIT, inner, outer)

    def plain(x: Tensor, w: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        in_delta = 0 if which == "outer" else b @ a
        out_delta = 0 if which == "inner" else d @ c
        adapted = gate_up.to(x.dtype) + in_delta, down.to(x.dtype) + out_delta
        return routed_experts_reference(x, ids, w, *adapted, LIMIT)

    for i, (fast, exact) in enumerate(
        zip(run(ours, [x.float() for x in leaves]), run(plain, leaves), strict=True)
    ):
        assert relative(fast, exact) < 2e-6, f"tensor {i}"


def test_fits_the_gpus() -> None:
    experts, grouped = "genoctx_kernels.moe.triton_experts", "genoctx_kernels.moe.triton_grouped"
    variants = []
    for dtype, tile in (("bf16", TENSOR_CORES), ("fp32", FLOAT32)):
        own = f"*{dtype}"
        launch = {"warps": tile.warps, "stages": tile.stages}
        types = {"a_ptr": own, "b_ptr": own, "c_ptr": own, "token_ptr": "*i32"}
        sizes = {"columns": "i32:16", "inner": "i32:16", "b_expert": "i32:16", "expert_ptr": "*i32"}
        blocks = {"BR": tile.rows, "BN": tile.columns, "BK": tile.inner, "E": 288}
        for gather, unit, wide in ((True, "b_inner", "b_column"), (False, "b_column", "b_inner")):
            constants = {**blocks, "GATHER": gather, unit: 1}
            label = f"{dtype} {'forward' if gather else 'backward'}"
            variants.append(
                Variant(
                    f"{grouped}:rows_kernel",
                    {**types, **sizes, wide: "i32:16"},
                    constants,
                    **launch,
                    label=label,
                )
            )
        outer = {**types, "weight_ptr": "*fp32", "first_ptr": "*i64", "count_ptr": "*i64"}
        blocks = {"BM": tile.rows, "BN": tile.columns, "BK": tile.inner}
        for a, b, name in ((False, True, "gate_up"), (True, False, "down"), (False, False, "adapters")):
            constants = {**blocks, "GATHER_A": a, "GATHER_B": b}
            label = f"{dtype} {name}"
            signature = {**outer, "rows": "i32:16", "columns": "i32:16"}
            variants.append(Variant(f"{grouped}:outer_kernel", signature, constants, **launch, label=label))
        scalars = {"token_ptr": "*i32", "width": "i32:16", "limit": "fp32"}
        d_swiglu = {"gate_up_ptr": own, "weight_ptr": "*fp32", "d_h_ptr": own, "d_ptr": own}
        combine = {"y_ptr": own, "row_ptr": "*i64", "weight_ptr": "*fp32", "out_ptr": own}
        variants += [
            Variant(
                f"{experts}:swiglu_kernel",
                {"gate_up_ptr": own, "h_ptr": own, **scalars},
                {"BI": COLUMNS},
                label=dtype,
            ),
            Variant(
                f"{experts}:d_swiglu_kernel",
                {**d_swiglu, "d_weight_ptr": "*fp32", **scalars},
                {"BI": COLUMNS},
                label=dtype,
            ),
            Variant(
                f"{experts}:combine_kernel",
                combine,
                {"D": 4096, "A": 8, "WEIGH": True, "BD": COLUMNS},
                label=dtype,
            ),
        ]
    assert_fits(variants)
