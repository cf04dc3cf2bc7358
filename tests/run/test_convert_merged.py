"""``genoctx convert``: deltas and adapters are added to the weights on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from converted import DENSE, EXPERT, HEAD, run
from hub_checkpoint import dequantised, read_hub, same_bits
from torch import Tensor

from genoctx.cli import app
from genoctx.errors import InputError
from genoctx.model.adapter import Lora
from genoctx.model.fp8 import dequantise_fp8, quantise_fp8
from genoctx.model.hub_names import hub_tensors
from genoctx.model.lora import adapters, add_adapters, merge
from genoctx.model.lora_file import fingerprint, save_adapters
from genoctx.model.weights import load_model

# merging


@pytest.mark.parametrize("form", ["hf", "genoctx"])
def test_a_delta_is_added_on_the_way(hub: Path, stored: dict[str, Tensor], tmp_path: Path, form: str) -> None:
    generator = torch.Generator().manual_seed(3)
    deltas = {name: torch.randn(stored[name].shape, generator=generator) for name in (HEAD, EXPERT)}
    merged = frozenset(deltas)
    run(hub, tmp_path / "m", form, delta=deltas.get, merged=merged, dtype=torch.float32, verify=True)
    result = read_hub(tmp_path / "m")
    for name, delta in deltas.items():
        assert same_bits(result[name], dequantised(stored, name) + delta)
    assert same_bits(result[DENSE], dequantised(stored, DENSE))


def test_a_weight_in_place_of_another(hub: Path, stored: dict[str, Tensor], tmp_path: Path) -> None:
    new = torch.randn(stored[HEAD].shape, generator=torch.Generator().manual_seed(3))
    for form in ("genoctx", "hf"):
        place = tmp_path / form
        run(hub, place, form, instead={HEAD: new}.get, merged=frozenset({HEAD}), dtype=torch.float32)
        assert same_bits(read_hub(place)[HEAD], new)


def test_a_delta_in_float8(hub: Path, stored: dict[str, Tensor], tmp_path: Path) -> None:
    delta = torch.full(stored[EXPERT].shape, 0.5)
    run(hub, tmp_path / "m", "hf", delta={EXPERT: delta}.get, merged=frozenset({EXPERT}))
    result = read_hub(tmp_path / "m")
    wanted = dequantised(stored, EXPERT) + 0.5
    assert result[EXPERT].dtype == torch.float8_e4m3fn
    assert ((dequantised(result, EXPERT) - wanted).abs() <= wanted.abs() / 16 + 1e-4).all()
    assert all(same_bits(result[n], stored[n]) for n in stored if not n.startswith(EXPERT))


def test_an_adapter_for_what_is_not_there(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the adapter changes ghost"):
        run(hub, tmp_path / "m", "hf", merged=frozenset({"ghost", HEAD}))
    assert not (tmp_path / "m").exists()


def test_float8_there_and_back() -> None:
    weight = torch.randn(70, 45, generator=torch.Generator().manual_seed(1)) * 30
    weight[:32, :32] = 0
    values, scale = quantise_fp8(weight, (32, 32))
    back = dequantise_fp8(values, scale, (32, 32))
    assert scale.shape == (3, 2) and scale[0, 0] == 1
    assert ((back - weight).abs() <= weight.abs() / 16 + 1e-3).all()
    assert values.float().abs()[64:, :32].max() == 448
    again = dequantise_fp8(*quantise_fp8(back, (32, 32)), (32, 32))
    assert torch.equal(again, back), "rounding twice is rounding once"


# adapters


def adapted(hub: Path, folder: Path) -> Path:
    """A checkpoint of a run with adapters beside ``hub``."""
    model = load_model(hub)
    add_adapters(model, Lora(2, 3.0, ("self_attn", "experts"), hub, fingerprint(hub)), seed=1)
    generator = torch.Generator().manual_seed(2)
    for _, adapter in adapters(model):
        drawn = torch.randn(adapter.lora_B.shape, generator=generator)
        adapter.lora_B.data.copy_(0.05 * drawn)
    folder.mkdir()
    save_adapters(model, folder)
    return folder


@pytest.mark.parametrize("by_flag", [True, False])
def test_adapters_are_merged_by_the_command(
    hub: Path, stored: dict[str, Tensor], tmp_path: Path, by_flag: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    place = adapted(hub, tmp_path / "adapters")
    source = ["convert", str(hub), "--merge-lora", str(place)] if by_flag else ["convert", str(place)]
    target = tmp_path / "merged"
    assert app.run([*source, str(target), "--to", "hf", "--dtype", "float32", "--verify"]) == 0
    said = capsys.readouterr().err
    assert ("are merged into" in said) != by_flag and "warning" not in said
    beside = load_model(place)
    merge(beside)
    pairs = zip(hub_tensors(load_model(target)), hub_tensors(beside), strict=True)
    moved = 0
    for (name, got), (_, wanted) in pairs:
        assert (got - wanted).abs().max() <= 1e-6, name
        moved += not torch.equal(got, dequantised(stored, name))
    assert moved > 100
    vision = "model.visual.blocks.0.attn.qkv.weight"
    assert same_bits(read_hub(target)[vision], stored[vision])


def test_adapters_of_layers_that_are_left_out(hub: Path, tmp_path: Path) -> None:
    place = adapted(hub, tmp_path / "adapters")
    args = ["convert", str(place), str(tmp_path / "part"), "--to", "genoctx", "--layers", "3,4"]
    assert app.run([*args, "--dtype", "float32"]) == 0
    beside = load_model(place)
    merge(beside)
    whole = dict(hub_tensors(beside))
    for name, tensor in hub_tensors(load_model(tmp_path / "part")):
        there = name.replace("layers.1.", "layers.4.").replace("layers.0.", "layers.3.")
        assert (tensor - whole[there]).abs().max() <= 1e-6


def test_adapters_that_do_not_go_there(
    hub: Path, tiny_fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, target = adapted(hub, tmp_path / "adapters"), str(tmp_path / "merged")
    assert app.run(["convert", str(hub), target, "--to", "hf", "--merge-lora", str(hub)]) == 2
    assert "holds no adapters" in capsys.readouterr().err
    assert app.run(["convert", str(place), target, "--to", "hf", "--merge-lora", str(place)]) == 2
    assert "holds adapters itself" in capsys.readouterr().err
    other = str(tiny_fixtures / "checkpoint")
    assert app.run(["convert", other, target, "--to", "hf", "--merge-lora", str(place)]) == 0
    assert "were trained beside other weights" in capsys.readouterr().err
    narrow = torch.zeros(8, 3)
    with pytest.raises(InputError, match=r"as \[8, 3\], it is"):
        run(hub, tmp_path / "no", "hf", delta={HEAD: narrow}.get, merged=frozenset({HEAD}))
    assert not (tmp_path / "no").exists()
