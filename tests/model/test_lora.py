"""Adapters: what they compute, where they go, what freezing frees, and merging."""

from __future__ import annotations

import pytest
import torch
from lora_model import EVERYWHERE, adapted, base, logits, trained, window

from genoctx.engine.batch import Coefficients
from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.errors import ConfigError
from genoctx.model.adapter import ADAPTER_PARTS, Lora
from genoctx.model.block import Objectives
from genoctx.model.hybrid import Hybrid
from genoctx.model.lora import adapters, add_adapters, choose_trainable, linears, merge
from genoctx.model.select import matches

KDA_LINEARS = {
    f"layers.0.self_attn.{name}_proj" for name in ("q", "k", "v", "o", "b", "f_a", "f_b", "g_a", "g_b")
}
DSA_LINEARS = {
    f"layers.1.self_attn.{name}"
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
}
MLP_LINEARS = {
    f"layers.{place}.{name}_proj"
    for place in ("0.mlp", "1.mlp.experts", "1.mlp.shared_experts")
    for name in ("gate", "up", "down")
}


# what adapters compute


def test_every_linear_but_the_indexers_can_have_one() -> None:
    rest = {"layers.1.mlp.gate", "lm_head"}
    assert {target.name for target in linears(base())} == KDA_LINEARS | DSA_LINEARS | MLP_LINEARS | rest


@pytest.mark.parametrize(
    "name", [*sorted(KDA_LINEARS | DSA_LINEARS | MLP_LINEARS), "layers.1.mlp.gate", "lm_head"]
)
def test_an_adapter_is_the_product_added_to_its_weight(name: str) -> None:
    """y = W x + (alpha / r) B A x, for every linear there is, against the weight W + (alpha / r) B A."""
    model = adapted(targets=(name,))
    ((found, adapter),) = adapters(model)
    assert found == name
    expected = base()
    (weight,) = (t.weight for t in linears(expected) if t.name == name)
    with torch.no_grad():
        weight += 1.5 * adapter.lora_B @ adapter.lora_A
    want = logits(expected)
    assert (logits(model) - want).abs().max() < 1e-12
    assert (logits(base()) - want).abs().max() > 1e-6


def test_before_the_first_step_nothing_has_changed() -> None:
    model = base()
    add_adapters(model, Lora(4, 8.0, EVERYWHERE), seed=0)
    assert torch.equal(logits(model), logits(base()))
    drawn = [adapter.lora_A.detach() for _, adapter in adapters(model)]
    assert all(a.std() > 0 and a.abs().max() <= a.shape[-1] ** -0.5 for a in drawn)
    again = base()
    add_adapters(again, Lora(4, 8.0, EVERYWHERE), seed=0)
    assert all(torch.equal(a, b.lora_A) for a, (_, b) in zip(drawn, adapters(again), strict=True))


def test_scores_of_a_streamed_window() -> None:
    model = adapted()
    assert (logits(model) - logits(model, [(0, 7), (7, 8), (8, 30)])).abs().max() < 1e-12


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_merged_weights_are_the_sum(dtype: torch.dtype, limit: float) -> None:
    model = adapted(dtype)
    before = {target.name: target.weight.detach().double().clone() for target in linears(model)}
    added = {name: adapter.delta().double() for name, adapter in adapters(model)}
    merge(model)
    for target in linears(model):
        exact = before[target.name] + added.get(target.name, 0.0)
        assert (target.weight - exact).abs().max() <= limit * exact.abs().max(), target.name


def test_a_merged_model_computes_the_same() -> None:
    model = adapted(torch.float64)
    before = logits(model)
    merge(model)
    assert not list(adapters(model)) and model.lora is None
    assert {n for n, _ in model.named_parameters()} == {n for n, _ in base().named_parameters()}
    assert (logits(model) - before).abs().max() <= 1e-12 * before.abs().max()


def test_a_bfloat16_base_keeps_small_steps() -> None:
    """Added to a bfloat16 weight they would be rounded away; beside it they are not."""
    model = base(torch.bfloat16)
    add_adapters(model, Lora(2, 2.0, ("q_proj",)), seed=0)
    ((_, adapter),) = adapters(model)
    assert adapter.lora_A.dtype == adapter.lora_B.dtype == torch.float32
    torch.nn.init.constant_(adapter.lora_B, 1e-6)
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    assert adapter(x).abs().max() > 0
    weight = model.layers[0].self_attn.q_proj.weight
    assert torch.equal((weight.float() + adapter.delta()).bfloat16(), weight)


# what is chosen


@pytest.mark.parametrize(
    ("name", "pattern", "hit"),
    [
        ("layers.0.self_attn.q_proj", "q_proj", True),
        ("layers.0.self_attn.q_proj", "self_attn", True),
        ("layers.0.self_attn.q_proj", "self_attn.*", True),
        ("layers.0.self_attn.q_proj", "layers.0", True),
        ("layers.10.self_attn.q_proj", "layers.1", False),
        ("layers.0.self_attn.q_proj", "layers.*.q_proj", False),
        ("layers.0.self_attn.q_proj", "proj", False),
        ("layers.1.mlp.experts.up_proj", "mlp.*_proj", False),
        ("layers.1.mlp.shared_experts.up_proj", "experts", False),
        ("layers.1.mlp.experts.up_proj", "experts", True),
        ("lm_head", "*", True),
    ],
)
def test_names(name: str, pattern: str, hit: bool) -> None:
    assert matches(name, pattern) == hit


@pytest.mark.parametrize("pattern", ["indexer", "wk", "indexer.*", "q_prj"])
def test_a_target_that_is_no_linear_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="the indexer is never a target") as caught:
        add_adapters(base(), Lora(2, 2.0, ("q_proj", pattern)), seed=0)
    assert pattern != "q_prj" or "q_proj" in caught.value.hint


def test_only_adapters_are_trained_and_an_indexer_with_kl() -> None:
    assert all(name.endswith(ADAPTER_PARTS) for name in trained(adapted()))
    with_kl = trained(adapted(objectives=Objectives(kl_mode="sparse")))
    rest = {name for name in with_kl if not name.endswith(ADAPTER_PARTS)}
    assert rest and all(".indexer." in name for name in rest)


def test_weights_beside_adapters() -> None:
    model = adapted(targets=("q_proj",))
    asked = choose_trainable(model, ("embed_tokens", "*norm"), ("layers.1",))
    found = {name for name in trained(model) if not name.endswith(ADAPTER_PARTS)}
    assert "embed_tokens.weight" in found and "norm.weight" in found
    assert "layers.0.self_attn.q_proj.adapter.lora_A" in trained(model)
    assert not any("layers.1" in name for name in trained(model))
    assert asked["embed_tokens"] == ["embed_tokens.weight"]


def test_part_of_a_model() -> None:
    model = base()
    choose_trainable(model, ("layers.1.self_attn", "lm_head"), ("o_proj",))
    assert {name.split(".")[-2] for name in trained(model)} == {
        "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "lm_head"
    }  # fmt: skip
    everything = trained(base())
    model = base()
    choose_trainable(model, (), ("layers.0",))
    assert trained(model) == {name for name in everything if not name.startswith("layers.0.")}


def test_the_indexer_alone() -> None:
    model = base(objectives=Objectives(kl_mode="dense"))
    choose_trainable(model, ("indexer",), ())
    assert trained(model) == {n for n, _ in model.named_parameters() if ".indexer." in n}
    optimizer = Optimizer(model, AdamWSettings())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = Engine(model, 9, Coefficients(indexer_kl=1.0)).train_step([window()], optimizer, 1e-2).losses
    assert losses.indexer_kl > 0
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == trained(model)


@pytest.mark.parametrize(
    ("trainable", "freeze", "kl", "message"),
    [
        ((), ("*",), "off", "trainable = 0"),
        (("embed_tokens",), ("embed_tokens",), "off", "trainable = 0"),
        (("indexer",), (), "off", "matches only what has no gradient"),
        (("e_score_correction_bias",), (), "off", "matches only what has no gradient"),
        (("embedding",), (), "off", "'embedding' matches no parameter"),
        ((), ("nrm",), "off", "'nrm' matches no parameter"),
        (("lm_head",), (), "sparse", "the indexer is frozen"),
    ],
)
def test_a_choice_that_trains_nothing_is_refused(
    trainable: tuple[str, ...], freeze: tuple[str, ...], kl: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_trainable(base(objectives=Objectives(kl_mode=kl)), trainable, freeze)


# what freezing frees


def bytes_of(optimizer: Optimizer) -> int:
    """Masters that are not the parameters themselves, and moments."""
    return sum(t.nbytes for _, t in optimizer.state())


def saved_bytes(model: Hybrid) -> int:
    """What autograd keeps of one chunk, each storage once, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        held.append(t)
        return t

    held: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(window(length=300).tokens_BT, model.initial_carry(1, 300))
    assert out.hidden.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_weights_have_no_gradient_no_master_and_no_moment(dtype: torch.dtype) -> None:
    whole = base(dtype)
    full = Optimizer(whole, AdamWSettings())
    Engine(whole, 30).train_step([window()], full, 1e-3)
    per_number = 8 if dtype == torch.float32 else 12  # two moments, and a master beside bfloat16
    held = {name: p for name, p in whole.named_parameters() if p.requires_grad}
    wide = sum(8 * p.numel() for p in held.values() if p.dtype == torch.float32)
    narrow = sum(per_number * p.numel() for p in held.values() if p.dtype != torch.float32)
    assert bytes_of(full) == wide + narrow + 4 * len(held)  # and a count of steps each

    model = base(dtype)
    add_adapters(model, Lora(2, 3.0, ("self_attn", "experts")), seed=5)
    optimizer = Optimizer(model, AdamWSettings())
    seen: set[str] = set()
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _, name=name: seen.add(name))
    Engine(model, 30).train_step([window()], optimizer, 1e-3)
    small = {name: p for name, p in model.named_parameters() if name.endswith(ADAPTER_PARTS)}
    assert seen == small.keys() == set(optimizer.masters)
    assert all(p.grad is None for p in model.parameters())
    assert bytes_of(optimizer) == sum(8 * p.numel() + 4 for p in small.values())


def test_frozen_weights_need_no_inputs_for_their_gradient() -> None:
    frozen = base()
    add_adapters(frozen, Lora(1, 1.0, ("layers.0.self_attn.q_proj",)), seed=0)
    numbers_a_token = (saved_bytes(base()) - saved_bytes(frozen)) / (300 * 8)
    assert numbers_a_token > 200


def test_gradients_are_those_of_the_whole_model() -> None:
    """Whatever is frozen, the rest gets the gradient that it would get anyway."""
    whole = base()
    expected = _gradients(whole)
    for pattern in (
        "layers.0",
        "layers.1",
        "self_attn",
        "mlp",
        "lm_head",
        "embed_tokens",
        "hc_*",
        "conv1d",
        "*norm",
    ):
        model = base()
        choose_trainable(model, (), (pattern,) if pattern != "conv1d" else ("*_conv1d",))
        found = _gradients(model)
        assert found.keys() == trained(model) and len(found) < len(expected)
        for name, gradient in found.items():
            assert (gradient - expected[name]).abs().max() <= 1e-12 * expected[name].abs().max(), (
                pattern,
                name,
            )


def _gradients(model: Hybrid) -> dict[str, torch.Tensor]:
    caught: dict[str, torch.Tensor] = {}
    optimizer = Optimizer(model, AdamWSettings(clip_norm=0.0))
    optimizer.step = lambda rate, norm: caught.update(  # type: ignore[method-assign]
        {name: g.clone() for name, g in optimizer.gradients()}
    )
    Engine(model, 11).train_step([window()], optimizer, 0.0)
    return caught
