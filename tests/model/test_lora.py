"""Adapters: what they compute, where they go, what freezing frees, their files, and merging."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.checkpoint import LoopState, read_checkpoint, write_checkpoint
from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.stream import walk
from genoctx.errors import ConfigError, InputError
from genoctx.model.adapter import ADAPTER_PARTS, Lora
from genoctx.model.block import Objectives
from genoctx.model.config import DSA, KDA, ModelConfig
from genoctx.model.hub_names import hub_tensors
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora import adapters, add_adapters, choose_trainable, linears, merge
from genoctx.model.lora_file import (
    AdapterFile,
    fingerprint,
    is_adapter,
    load_adapters,
    save_adapters,
)
from genoctx.model.select import matches
from genoctx.model.weights import load_model, load_weights, save_weights

EVERYWHERE = ("*",)
CONFIG = ModelConfig(
    vocab_size=6,
    hidden_size=8,
    num_hidden_layers=2,
    layer_types=(KDA, DSA),
    mlp_layer_types=("dense", "sparse"),
    intermediate_size=10,
    moe_intermediate_size=4,
    n_routed_experts=3,
    num_experts_per_tok=2,
    hc_mult=2,
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
    index_topk=8,
    index_kpool=4,
    pad_token_id=None,
)
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


def base(dtype: torch.dtype = torch.float64, objectives: Objectives | None = None, seed: int = 1) -> Hybrid:
    model = build(CONFIG, dtype=dtype, objectives=objectives or Objectives(), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 and "conv1d" not in name:
                p.copy_(0.4 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def adapted(
    dtype: torch.dtype = torch.float64,
    targets: tuple[str, ...] = EVERYWHERE,
    objectives: Objectives | None = None,
    folder: Path | None = None,
) -> Hybrid:
    """A base with adapters whose B is not zero any more."""
    model = base(dtype, objectives)
    digest = fingerprint(folder) if folder else ""
    add_adapters(model, Lora(2, 3.0, targets, folder, digest), seed=5)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, adapter in adapters(model):
            adapter.lora_B.copy_(torch.randn(adapter.lora_B.shape, generator=generator))
    return model


def window(seed: int = 0, length: int = 30) -> Batch:
    tokens = torch.randint(0, 4, (1, length), generator=torch.Generator().manual_seed(seed))
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    return Batch(tokens, targets, ("w",))


def logits(model: Hybrid, bounds: list[tuple[int, int]] | None = None) -> torch.Tensor:
    """[T, V] of a window, chunk by chunk."""
    batch, parts = window(), []
    for _, _, hidden in walk(model, batch, bounds or [(0, 30)]):
        rows, head = model.head(hidden[0])
        parts.append(rows @ head.T)
    return torch.cat(parts).detach()


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


def trained(model: Hybrid) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


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
    assert saved_bytes(frozen) < 0.75 * saved_bytes(base())


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


# files


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The base's weights in a directory."""
    folder = tmp_path / "base"
    folder.mkdir()
    save_weights(base(), folder)
    return folder


def run(model: Hybrid, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        Engine(model, 13).train_step([window(step)], optimizer, 1e-2)


def start(stored: Path, seed: int = 3) -> Hybrid:
    model = build(CONFIG, dtype=torch.float32, seed=None)
    load_weights(model, stored)
    add_adapters(model, Lora(2, 3.0, ("self_attn", "experts", "gate"), stored, fingerprint(stored)), seed)
    choose_trainable(model, ("embed_tokens", "A_log"), ())
    return model


def test_a_checkpoint_of_adapters_goes_on_bit_for_bit(stored: Path, tmp_path: Path) -> None:
    model, folder = start(stored), tmp_path / "step"
    optimizer = Optimizer(model, AdamWSettings())
    run(model, optimizer, range(2))
    folder.mkdir()
    write_checkpoint(folder, model, optimizer, LoopState(2, 58))
    run(model, optimizer, range(2, 4))
    assert not list(folder.glob("model*")) and is_adapter(folder)
    again = start(stored, seed=8)
    restored = Optimizer(again, AdamWSettings())
    assert read_checkpoint(folder, again, restored) == LoopState(2, 58)
    run(again, restored, range(2, 4))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_files_are_laid_out_as_peft_has_them(stored: Path, tmp_path: Path) -> None:
    model = adapted(targets=("q_proj", "experts.up_proj", "gate"), folder=stored)
    choose_trainable(model, ("norm",), ())
    save_adapters(model, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    text = "model.language_model."
    assert config["target_modules"] == sorted(
        [f"{text}layers.0.self_attn.q_proj", f"{text}layers.1.mlp.gate"]
        + [f"{text}layers.1.mlp.experts.{e}.up_proj" for e in range(3)]
    )
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 3.0)
    assert config["modules_to_save"] == [f"{text}norm"]
    assert config["base_model_name_or_path"] == str(stored)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    shapes = {name: list(t.shape) for name, t in tensors.items()}
    outer = f"base_model.model.{text}layers."
    assert shapes[f"{outer}0.self_attn.q_proj.lora_A.weight"] == [2, 8]
    assert shapes[f"{outer}0.self_attn.q_proj.lora_B.weight"] == [8, 2]
    assert shapes[f"{outer}1.mlp.experts.2.up_proj.lora_B.weight"] == [4, 2]
    assert shapes[f"base_model.model.{text}norm.weight"] == [8]
    assert len(tensors) == 2 * 5 + 1


def test_merging_into_hub_tensors(stored: Path, tmp_path: Path) -> None:
    """What `convert --merge-lora` adds, weight by weight, is what the model computes with."""
    model = adapted(folder=stored)
    choose_trainable(model, ("embed_tokens",), ())
    with torch.no_grad():
        model.embed_tokens.weight += 1
    save_adapters(model, tmp_path)
    file = AdapterFile(tmp_path)
    before = dict(hub_tensors(base()))
    merge(model)
    changed = set()
    for name, tensor in hub_tensors(model):
        delta, instead = file.delta(name), file.replacement(name)
        expected = instead if instead is not None else before[name] + (0 if delta is None else delta)
        assert (tensor - expected).abs().max() <= 1e-14, name
        changed |= {name} if delta is not None or instead is not None else set()
    assert changed == file.names()
    assert file.delta("model.language_model.layers.1.self_attn.indexer.wk.weight") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_directory_of_adapters_is_a_model(dtype: torch.dtype, stored: Path, tmp_path: Path) -> None:
    """For eval; and train.init takes it as the merged weights."""
    model = adapted(folder=stored)
    choose_trainable(model, ("norm",), ())
    with torch.no_grad():
        model.norm.weight *= 3
    save_adapters(model, tmp_path)
    want, limit = logits(model), 1e-12 if dtype == torch.float64 else 1e-4
    assert (logits(load_model(tmp_path, dtype=dtype)) - want).abs().max() < limit
    merged = build(CONFIG, dtype=dtype, seed=None)
    load_weights(merged, tmp_path)
    assert not list(adapters(merged)) and trained(merged) == trained(base())
    assert (logits(merged) - want).abs().max() < limit
    add_adapters(merged, Lora(1, 1.0, ("o_proj",), tmp_path, fingerprint(tmp_path)), seed=0)
    (tmp_path / "second").mkdir()
    save_adapters(merged, tmp_path / "second")
    assert (logits(load_model(tmp_path / "second", dtype=dtype)) - want).abs().max() < limit


def test_other_base_weights_are_noticed(stored: Path, tmp_path: Path) -> None:
    save_adapters(adapted(folder=stored), tmp_path)
    save_weights(base(seed=2), stored)
    with pytest.raises(InputError, match="belong to other weights"):
        load_model(tmp_path)
    (stored / "config.json").unlink()
    with pytest.raises(InputError, match="where there are none") as caught:
        load_model(tmp_path)
    assert "base_model_name_or_path" in caught.value.hint


def test_faults_of_adapter_files_are_listed(stored: Path, tmp_path: Path) -> None:
    model = adapted(targets=("q_proj", "o_proj"), folder=stored)
    save_adapters(model, tmp_path)
    path, outer = (
        tmp_path / "adapter_model.safetensors",
        "base_model.model.model.language_model.layers.0.self_attn.",
    )
    tensors = load_file(path)
    del tensors[f"{outer}q_proj.lora_A.weight"]
    tensors[f"{outer}o_proj.lora_B.weight"] = torch.zeros(3, 2)
    tensors["base_model.model.nonsense"] = torch.zeros(1)
    save_file(tensors, path)
    with pytest.raises(InputError) as caught:
        load_adapters(model, tmp_path)
    assert f"missing {outer}q_proj.lora_A.weight" in caught.value.message
    assert "o_proj.lora_B.weight is [3, 2], the model needs [8, 2]" in caught.value.message
    assert "extra base_model.model.nonsense" in caught.value.message
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="cannot read"):
        load_adapters(model, tmp_path)


@pytest.mark.parametrize(
    "change", [{"use_dora": True}, {"rank_pattern": {"q_proj": 4}}, {"peft_type": "LOHA"}, {"r": "x"}]
)
def test_adapters_of_another_kind_are_refused(
    change: dict[str, object], stored: Path, tmp_path: Path
) -> None:
    save_adapters(adapted(folder=stored), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"adapter_config\.json"):
        AdapterFile(tmp_path)
