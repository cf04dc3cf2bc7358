"""Hub-layout weights: FP8, round trip, errors; presets and the published parameter count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from genoctx.config import config_from_dict, list_presets, load_config, preset_model
from genoctx.errors import ConfigError, InputError
from genoctx.model.config import DSA, KDA, ModelConfig
from genoctx.model.count import count_parameters
from genoctx.model.fp8 import dequantise_fp8
from genoctx.model.hub_config import from_hub, read_hub_config
from genoctx.model.hub_names import hub_tensors
from genoctx.model.hybrid import build
from genoctx.model.weights import load_model, save_weights


def test_fp8_blocks_dequantise_bit_exactly(tiny_fixtures: Path) -> None:
    f = load_file(tiny_fixtures / "fp8_block.safetensors")
    ours = dequantise_fp8(f["w.weight"], f["w.weight_scale_inv"])
    assert torch.equal(ours, f["dequantised_f32"])


def test_glm_5_3_flash_has_the_published_number_of_parameters() -> None:
    config = preset_model("glm-5.3-flash")
    model = build(config, dtype=torch.bfloat16, device="meta")
    assert sum(p.numel() for p in model.parameters()) == 313_326_811_966
    assert config == ModelConfig()


@pytest.mark.parametrize("name", sorted(set(list_presets()) - {"glm-5.3-flash"}))
def test_presets_build_with_all_kinds_of_layers(name: str) -> None:
    config = preset_model(name)
    model = build(config, device="meta")
    assert sum(p.numel() for p in model.parameters()) == count_parameters(config)
    assert set(config.layer_types) == {KDA, DSA} and config.moe_layers


def test_sizes_of_the_small_presets() -> None:
    assert count_parameters(preset_model("nano")) == 2_827_432
    assert 80e6 < count_parameters(preset_model("small")) < 125e6


def test_round_trip(tiny_fixtures: Path, tmp_path: Path) -> None:
    model = load_model(tiny_fixtures / "checkpoint", dtype=torch.bfloat16)
    save_weights(model, tmp_path)
    again = load_model(tmp_path, dtype=torch.bfloat16)
    assert again.config == model.config
    stored = load_file(tiny_fixtures / "checkpoint" / "model.safetensors")
    for (name, a), (_, b) in zip(hub_tensors(model), hub_tensors(again), strict=True):
        assert a.dtype == b.dtype == stored[name].dtype
        assert torch.equal(a, b) and torch.equal(a, stored[name]), name


def test_sharded_index(tiny_fixtures: Path, tmp_path: Path) -> None:
    stored = load_file(tiny_fixtures / "checkpoint" / "model.safetensors")
    names = sorted(stored)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({n: stored[n] for n in part}, tmp_path / file)
    index = {"weight_map": {n: file for file, part in shards.items() for n in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(tiny_fixtures / "checkpoint" / "config.json", tmp_path)
    whole = dict(hub_tensors(load_model(tiny_fixtures / "checkpoint")))
    assert all(torch.equal(t, whole[n]) for n, t in hub_tensors(load_model(tmp_path)))


@pytest.fixture
def copy(tiny_fixtures: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_fixtures / "checkpoint", tmp_path / "c")
    return tmp_path / "c"


def test_missing_and_misshaped_tensors_are_all_listed(copy: Path) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    name = "model.language_model.layers.4.mlp.experts.3.up_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, file)
    with pytest.raises(InputError) as caught:
        load_model(copy)
    assert "missing lm_head.weight" in caught.value.message and name in caught.value.message


def test_truncated_file_is_named(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load_model(copy)


def test_no_weights(tmp_path: Path, tiny_fixtures: Path) -> None:
    shutil.copy(tiny_fixtures / "checkpoint" / "config.json", tmp_path)
    with pytest.raises(InputError, match="no weights"):
        load_model(tmp_path)


@pytest.mark.parametrize("spelling", ["deepseek_sparse_attention", "full_attention", "indexed_attention"])
def test_hub_config_spellings(spelling: str, tiny_fixtures: Path) -> None:
    raw = json.loads((tiny_fixtures / "checkpoint" / "config.json").read_text())
    text = raw["text_config"]
    text["layer_types"] = [spelling if k == "deepseek_sparse_attention" else k for k in text["layer_types"]]
    text["head_dim"] = 999  # misleading, ignored
    nested, flat = from_hub(raw), from_hub(text)
    assert nested == flat
    assert nested.dsa_layers == (3, 7) and nested.linear_head_dim == 16 and nested.index_kpool == 4


def test_a_hub_config_without_kpool_is_refused(tiny_fixtures: Path) -> None:
    raw = json.loads((tiny_fixtures / "checkpoint" / "config.json").read_text())
    del raw["text_config"]["index_kpool"]
    with pytest.raises(ConfigError, match="index_kpool"):
        from_hub(raw)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ConfigError, match="layer_types has 1"):
        ModelConfig(layer_types=(KDA,))
    with pytest.raises(ConfigError, match="index_topk 6 is not a multiple"):
        ModelConfig(index_topk=6)
    with pytest.raises(ConfigError, match="linear_lower_bound -6"):
        ModelConfig(linear_lower_bound=-6.0)


def test_a_config_without_a_shape_takes_that_of_the_checkpoint(tiny_fixtures: Path, tmp_path: Path) -> None:
    text = '[data]\nstore = "s"\nwindows = "w.bed"\n'
    (tmp_path / "run.toml").write_text(text)
    checkpoint = tiny_fixtures / "checkpoint"
    overrides = [f"train.init={checkpoint}"]
    config = load_config(tmp_path / "run.toml", overrides=overrides)
    assert config.model == read_hub_config(checkpoint / "config.json")
    origins = {key: origin for key, _, origin in config.explain()}
    assert origins["model.hidden_size"] == str(checkpoint / "config.json")
    assert config_from_dict(config.to_dict()).model == config.model
    given = load_config(tmp_path / "run.toml", overrides=[*overrides, "model.hidden_size=32"])
    assert given.model == ModelConfig(hidden_size=32)


@pytest.mark.parametrize(
    "change",
    [
        {"qk_rope_head_dim": 64},
        {"n_group": 8},
        {"tie_word_embeddings": True},
        {"scoring_func": "softmax"},
        {"index_kpool_always_select_tail": False},
        {"indexer_types": ["full", "shared"]},
        {"linear_attn_config": {"gate_lower_bound": None}},
        {"model_type": "glm_moe_dsa"},
        {"hidden_size": "wide"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_config_of_another_kind_of_model_is_refused(
    change: dict[str, object], tiny_fixtures: Path, tmp_path: Path
) -> None:
    raw = json.loads((tiny_fixtures / "checkpoint" / "config.json").read_text())
    raw["text_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_hub_config(tmp_path / "config.json")


def test_kinds_of_layers_may_be_named_by_the_linear_config_alone(tiny_fixtures: Path) -> None:
    raw = json.loads((tiny_fixtures / "checkpoint" / "config.json").read_text())
    whole = from_hub(raw)
    del raw["text_config"]["layer_types"], raw["text_config"]["mlp_layer_types"]
    assert from_hub(raw) == whole
