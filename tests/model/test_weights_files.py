"""Damaged, incomplete and foreign checkpoints: one error that names everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hub_checkpoint import MTP_LAYER, TRUNK, dequantised, is_trunk, make_hub, read_hub, write_hub
from torch import Tensor

from genoctx.errors import ConfigError, InputError
from genoctx.model.hub_names import hub_tensors
from genoctx.model.weights import load_model

Tensors = dict[str, Tensor]
EXPERT = f"{TRUNK}layers.4.mlp.experts.3.up_proj.weight"


@pytest.fixture
def hub(tiny_fixtures: Path, tmp_path: Path) -> Path:
    make_hub(tiny_fixtures / "checkpoint", tmp_path / "hub")
    return tmp_path / "hub"


def change(hub: Path, edit: Callable[[Tensors], None]) -> None:
    """Write the checkpoint again after ``edit``."""
    tensors = read_hub(hub)
    edit(tensors)
    write_hub(hub, tensors, 5)


def complaint(hub: Path, layers: tuple[int, ...] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_model(hub, layers=layers)
    return caught.value.message


def test_a_whole_hub_checkpoint_loads_with_float8_mtp_and_vision(hub: Path) -> None:
    stored = read_hub(hub)
    loaded = dict(hub_tensors(load_model(hub)))
    assert loaded.keys() == {n for n in stored if is_trunk(n) and not n.endswith("_scale_inv")}
    assert all(torch.equal(t, dequantised(stored, name)) for name, t in loaded.items())
    half = dict(hub_tensors(load_model(hub, dtype=torch.bfloat16)))
    assert torch.equal(half[EXPERT], dequantised(stored, EXPERT).bfloat16())


def test_all_problems_come_in_one_error(hub: Path) -> None:
    def edit(tensors: Tensors) -> None:
        del tensors["lm_head.weight"], tensors[f"{TRUNK}layers.0.hc_attn_fn"]
        tensors[EXPERT] = tensors[EXPERT][:, :-1].contiguous()
        tensors[f"{TRUNK}layers.1.self_attn.q_proj.bias"] = torch.zeros(4)
        tensors["classifier.weight"] = torch.zeros(4)
        tensors[f"{TRUNK}norm.weight"] = torch.zeros(64, dtype=torch.int32)
        name = f"{TRUNK}layers.3.self_attn.q_a_proj.weight_scale_inv"
        tensors[name] = tensors[name][:1, :1].contiguous()
        del tensors[f"{TRUNK}layers.5.mlp.experts.0.down_proj.weight_scale_inv"]

    change(hub, edit)
    said = complaint(hub)
    assert "8 reasons" in said
    for text in (
        "missing lm_head.weight",
        f"missing {TRUNK}layers.0.hc_attn_fn",
        f"{EXPERT} is [16, 63], the model needs [16, 64]",
        f"extra {TRUNK}layers.1.self_attn.q_proj.bias",
        "extra classifier.weight",
        f"{TRUNK}norm.weight is stored as I32",
        "q_a_proj.weight_scale_inv is [1, 1], blocks of 32 x 32 need [2, 2]",
        f"missing {TRUNK}layers.5.mlp.experts.0.down_proj.weight_scale_inv",
    ):
        assert text in said, said


def test_a_long_list_is_cut_and_counted(hub: Path) -> None:
    def edit(tensors: Tensors) -> None:
        for name in [
            n for n in tensors if ".experts." in n and n.endswith("down_proj.weight") and is_trunk(n)
        ]:
            del tensors[name]

    change(hub, edit)
    said = complaint(hub)
    assert len(said.splitlines()) == 22 and "48 reasons" in said and "and 28 more" in said


def test_damaged_files_are_all_named(hub: Path) -> None:
    shards = sorted(hub.glob("*.safetensors"))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-1000])
    shards[2].write_bytes(b"\xff" * 100)
    shards[3].write_bytes(shards[3].read_bytes() + b"0123456")
    shards[4].write_bytes(b"")
    said = complaint(hub)
    for shard, text in zip(
        shards,
        (
            "is missing",
            "is truncated",
            "not safetensors",
            "has 7 bytes after its last tensor",
            "not safetensors",
        ),
        strict=True,
    ):
        assert any(str(shard) in line and text in line for line in said.splitlines()), said
    assert "missing model" not in said, "a tensor of a damaged file is not reported a second time"


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_truncated_single_file(tiny_fixtures: Path, tmp_path: Path, length: int) -> None:
    shutil.copytree(tiny_fixtures / "checkpoint", tmp_path / "c")
    file = tmp_path / "c" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert f"{file} is truncated" in complaint(tmp_path / "c")


def header(entry: object) -> bytes:
    text = json.dumps({"a": entry}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"dtype": "F32", "shape": [2]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": ["two"], "data_offsets": [0, 8]},
    ],
)
def test_an_entry_that_is_no_tensor(hub: Path, entry: object) -> None:
    shard = min(hub.glob("*.safetensors"))
    shard.write_bytes(header(entry) + b"12345678")
    assert f"{shard} lists a, but not as a tensor" in complaint(hub)


def test_an_index_that_disagrees_with_its_files(hub: Path) -> None:
    index = hub / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    a, b = "lm_head.weight", f"{TRUNK}norm.weight"
    other = next(file for file in places.values() if file not in (places[a], places[b]))
    first = places.pop(a)
    second, places[b] = places[b], other
    places["model.language_model.ghost.weight"] = other
    index.write_text(json.dumps({"weight_map": places}))
    said = complaint(hub)
    assert f"{first} holds {a}, which the index does not list" in said
    assert f"{other} does not hold {b}, which the index places there; {second} does" in said
    assert f"{other} does not hold model.language_model.ghost.weight" in said


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../a.safetensors"}}', '{"weight_map": 3}'],
)
def test_an_index_nobody_can_read(hub: Path, text: str) -> None:
    (hub / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in complaint(hub)


def test_one_file_beside_an_index_is_ambiguous(hub: Path) -> None:
    shutil.copy(min(hub.glob("*.safetensors")), hub / "model.safetensors")
    assert "holds both" in complaint(hub)


def test_a_config_that_differs_where_no_shape_shows_it(hub: Path, tiny_fixtures: Path) -> None:
    from genoctx.model.weights import load_weights

    model = load_model(tiny_fixtures / "checkpoint")
    raw = json.loads((hub / "config.json").read_text())
    raw["text_config"] |= {"swiglu_limit": 10.0, "num_experts_per_tok": 3, "initializer_range": 9.0}
    (hub / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError) as caught:
        load_weights(model, hub)
    said = caught.value.message
    assert "2 reasons" in said
    assert "swiglu_limit is 10.0 in its config.json, 4.0 in the model" in said
    assert "num_experts_per_tok is 3 in its config.json, 2 in the model" in said


# some of the layers


def test_named_layers_of_a_checkpoint(hub: Path) -> None:
    stored = read_hub(hub)
    model = load_model(hub, layers=(2, 3, 8))
    assert model.config.layer_types == ("linear_attention", "deepseek_sparse_attention", "linear_attention")
    assert model.config.mlp_layer_types == ("dense", "sparse", "sparse")
    for name, tensor in hub_tensors(model):
        for ours, theirs in ((2, 8), (1, 3), (0, 2)):
            name = (
                name.replace(f"layers.{ours}.", f"layers.{theirs}.", 1) if f"layers.{ours}." in name else name
            )
        assert torch.equal(tensor, dequantised(stored, name)), name


@pytest.mark.parametrize("layers", [(), (0, 0), (0, 9), (-1,)])
def test_layers_that_are_no_subset(hub: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="no subset of the checkpoint's 9"):
        load_model(hub, layers=layers)


def test_a_part_of_the_files_is_enough_for_some_layers(hub: Path) -> None:
    """As after a download of the first shards only."""
    stored = read_hub(hub)
    for path in hub.glob("*.safetensors"):
        path.unlink()
    first = {n for n in stored if ".layers." not in n or ".layers.0." in n or ".layers.1." in n}
    order = [*sorted(first), *sorted(stored.keys() - first)]
    parts = [order[: len(first)], order[len(first) :]]
    places = {}
    from safetensors.torch import save_file

    for k, part in enumerate(parts):
        save_file({n: stored[n] for n in part}, hub / f"{k}.safetensors")
        places |= dict.fromkeys(part, f"{k}.safetensors")
    (hub / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (hub / "1.safetensors").unlink()
    assert load_model(hub, layers=(0, 1)).config.num_hidden_layers == 2
    assert f"{hub / '1.safetensors'} is missing" in complaint(hub)
    assert f"{hub / '1.safetensors'} is missing" in complaint(hub, (0, 2))


def test_a_slice_whose_config_still_has_the_lists_of_the_whole(hub: Path) -> None:
    raw = json.loads((hub / "config.json").read_text())
    raw["text_config"]["num_hidden_layers"] = 4
    (hub / "config.json").write_text(json.dumps(raw))
    change(hub, lambda t: [t.pop(n) for n in list(t) if any(f"layers.{i}." in n for i in (4, 5, 6, 7, 8))])
    assert load_model(hub).config.dsa_layers == (3,)


def test_layers_the_model_does_not_have(hub: Path) -> None:
    raw = json.loads((hub / "config.json").read_text())
    raw["text_config"]["num_hidden_layers"] = 4
    (hub / "config.json").write_text(json.dumps(raw))
    said = complaint(hub)
    assert "1 reason:" in said and "extra layers 4-8: the model has 4" in said


def test_layers_that_are_not_there_at_all(hub: Path) -> None:
    change(hub, lambda t: [t.pop(n) for n in list(t) if any(f"layers.{i}." in n for i in (2, 3, 6))])
    said = complaint(hub)
    assert "1 reason:" in said and "missing layers 2-3, 6" in said


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_text_only_checkpoint_with_another_prefix(hub: Path, prefix: str) -> None:
    whole = dict(hub_tensors(load_model(hub)))
    raw = json.loads((hub / "config.json").read_text())
    flat = raw["text_config"] | {"quantization_config": raw["quantization_config"]}
    (hub / "config.json").write_text(json.dumps(flat))

    def edit(tensors: Tensors) -> None:
        for name in list(tensors):
            tensor = tensors.pop(name)
            if not name.startswith("model.visual."):
                tensors[name.replace(TRUNK, prefix)] = tensor

    change(hub, edit)
    assert all(torch.equal(t, whole[name]) for name, t in hub_tensors(load_model(hub)))


def test_the_mtp_layer_is_told_by_what_it_holds(hub: Path) -> None:
    change(hub, lambda t: t.pop(f"{TRUNK}layers.{MTP_LAYER}.eh_proj.weight"))
    assert f"extra layers {MTP_LAYER}" in complaint(hub)
