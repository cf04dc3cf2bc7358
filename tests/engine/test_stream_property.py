"""Streamed training equals ordinary backpropagation: every parameter gradient, in float64, at any cut."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.selftest import compare
from genoctx.engine.stream import Bounds
from genoctx.model.adapter import Lora
from genoctx.model.block import Objectives
from genoctx.model.config import DENSE, DSA, KDA, SPARSE, ModelConfig
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora import adapters, add_adapters, choose_trainable

CASES = 250
LIMIT = 1e-10


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """Small shapes of every kind: order of layers, pools, dense or MoE, streams, heads."""
    kinds = draw(st.sampled_from([(KDA, DSA), (DSA, KDA), (DSA, DSA), (KDA, KDA), (KDA, DSA, KDA)]))
    pool = draw(st.sampled_from([1, 2, 4, 8]))
    return ModelConfig(
        vocab_size=6,
        hidden_size=8,
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        mlp_layer_types=tuple(draw(st.sampled_from([DENSE, SPARSE])) for _ in kinds),
        intermediate_size=8,
        moe_intermediate_size=4,
        n_routed_experts=4,
        num_experts_per_tok=draw(st.integers(1, 4)),
        swiglu_limit=draw(st.sampled_from([0.5, 10.0])),
        hc_mult=draw(st.sampled_from([1, 2, 4])),
        hc_sinkhorn_iters=draw(st.sampled_from([1, 20])),
        linear_num_heads=2,
        linear_head_dim=4,
        linear_gate_low_rank=3,
        num_attention_heads=2,
        q_lora_rank=4,
        kv_lora_rank=4,
        qk_nope_head_dim=4,
        v_head_dim=3,
        index_n_heads=2,
        index_head_dim=4,
        index_topk=pool * draw(st.integers(1, 4)),
        index_kpool=pool,
        pad_token_id=None,
    )


@st.composite
def cuts(draw: st.DrawFn, length: int) -> Bounds:
    """Any cut points, chunks of one token included."""
    if draw(st.booleans()):
        step = draw(st.integers(1, length))
        edges = [*range(0, length, step), length]
    else:
        edges = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=6))})
    return list(pairwise(edges))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batch, Bounds]:
    """Random bases, runs of N, poly-A or a short repeat; any mask of targets, whole chunks included."""
    length, rows = draw(st.integers(1, 80)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["random", "runs of N", "poly-A", "repeat"]))
    event(kind)
    tokens = torch.randint(0, 4, (rows, length), generator=generator)
    if kind == "runs of N":
        start = draw(st.integers(0, length - 1))
        tokens[:, start : start + draw(st.integers(1, length))] = 4
    elif kind == "poly-A":
        tokens[:] = 0
    elif kind == "repeat":
        tokens = tokens[:, : draw(st.integers(1, 5))].repeat(1, length)[:, :length]
    bounds = draw(cuts(length))
    targets = torch.roll(tokens, -1, 1)
    targets[tokens == 4] = -100
    targets[:, -1] = -100
    masked = draw(st.sampled_from(["few", "chunk", "half"]))
    if masked == "chunk":
        start, end = draw(st.sampled_from(bounds))
        targets[:, start:end] = -100
    elif masked == "half":
        targets[torch.rand(rows, length, generator=generator) < 0.5] = -100
    skip = tuple(draw(st.sampled_from([0, 0, draw(st.integers(0, length - 1))])) for _ in range(rows))
    for row, pad in enumerate(skip):
        targets[row, :pad] = -100
    targets[0, -1] = 1  # a step has at least one target
    share = None
    if draw(st.booleans()):
        share = torch.rand(rows, length, generator=generator).clamp_min(0.1)
        event("targets count unequally")
    return Batch(tokens, targets, ("w",) * rows, skip, share), bounds


def random_model(config: ModelConfig, objectives: Objectives, seed: int) -> Hybrid:
    """Every parameter random: fresh norms, gates and biases would hide mistakes."""
    model = build(config, dtype=torch.float64, objectives=objectives, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(p + 0.3 * noise if "norm" in name or p.ndim < 2 else 0.4 * noise)
    return model


def put_adapters(model: Hybrid, rank: int, targets: tuple[str, ...], seed: int) -> None:
    """On a frozen model, with B away from zero, where A has no gradient."""
    add_adapters(model, Lora(rank, 2.0, targets), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for _, adapter in adapters(model):
            adapter.lora_B.copy_(0.4 * torch.randn(adapter.lora_B.shape, generator=generator))


@settings(max_examples=CASES, derandomize=True)
@given(
    config=models(),
    steps=st.lists(batches(), min_size=1, max_size=4),
    balance=st.sampled_from([0.0, 0.1]),
    kl=st.sampled_from([("off", 0.0), ("sparse", 0.3), ("dense", 0.3)]),
    seed=st.integers(0, 10**6),
)
def test_every_gradient_equals_whole_window_autograd(
    config: ModelConfig, steps: list[tuple[Batch, Bounds]], balance: float, kl: tuple[str, float], seed: int
) -> None:
    mode, coefficient = kl
    model = random_model(config, Objectives(balance > 0, mode), seed)
    windows, bounds = [b for b, _ in steps], [c for _, c in steps]
    found = compare(model, windows, bounds, Coefficients(balance, coefficient))
    event(f"accumulation {len(steps)}, KL {mode}, balance {balance > 0}")
    event(f"whole window selects the same by itself: {found.same_choices}")
    assert found.gradient <= LIMIT, f"{found.worst}: {found.gradient:.2e}"
    assert found.loss <= LIMIT


@settings(max_examples=40, derandomize=True)
@given(
    config=models(),
    steps=st.lists(batches(), min_size=1, max_size=2),
    balance=st.sampled_from([0.0, 0.1]),
    kl=st.sampled_from([("off", 0.0), ("sparse", 0.3)]),
    rank=st.integers(1, 3),
    targets=st.sampled_from([("*",), ("self_attn",), ("mlp",), ("layers.1",), ("lm_head",)]),
    trainable=st.sampled_from([(), ("embed_tokens", "*norm")]),
    seed=st.integers(0, 10**6),
)
def test_adapters_on_a_frozen_model(
    config: ModelConfig,
    steps: list[tuple[Batch, Bounds]],
    balance: float,
    kl: tuple[str, float],
    rank: int,
    targets: tuple[str, ...],
    trainable: tuple[str, ...],
    seed: int,
) -> None:
    """Gradients of every adapter, and of weights that are trained beside them; nothing else has one."""
    mode, coefficient = kl
    model = random_model(config, Objectives(balance > 0, mode), seed)
    put_adapters(model, rank, targets, seed)
    choose_trainable(model, trainable, ())
    windows, bounds = [b for b, _ in steps], [c for _, c in steps]
    found = compare(model, windows, bounds, Coefficients(balance, coefficient))
    event(f"targets {targets}, KL {mode}, balance {balance > 0}")
    assert found.gradient <= LIMIT, f"{found.worst}: {found.gradient:.2e}"
    assert found.loss <= LIMIT
    assert found.parameters <= sum(p.requires_grad for p in model.parameters())


@settings(max_examples=20, derandomize=True)
@given(
    config=models(),
    step=batches(),
    freeze=st.sampled_from(["layers.0", "layers.1", "self_attn", "mlp", "embed_tokens", "*proj*", "hc_*"]),
    seed=st.integers(0, 10**6),
)
def test_a_model_that_is_frozen_in_part(
    config: ModelConfig, step: tuple[Batch, Bounds], freeze: str, seed: int
) -> None:
    model = random_model(config, Objectives(), seed)
    choose_trainable(model, (), (freeze,))
    found = compare(model, [step[0]], [step[1]], Coefficients())
    assert found.gradient <= LIMIT, f"{found.worst}: {found.gradient:.2e}"
