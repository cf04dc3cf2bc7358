"""Files of adapters: checkpoints, the layout of PEFT, merging into hub tensors, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lora_model import CONFIG, adapted, base, logits, trained, window
from safetensors.torch import load_file, save_file

from genoctx.engine.checkpoint import LoopState, read_checkpoint, write_checkpoint
from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.errors import InputError
from genoctx.model.adapter import Lora
from genoctx.model.hub_names import hub_tensors
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora import adapters, add_adapters, choose_trainable, merge
from genoctx.model.lora_file import (
    AdapterFile,
    fingerprint,
    is_adapter,
    load_adapters,
    save_adapters,
)
from genoctx.model.weights import load_model, load_weights, save_weights


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
