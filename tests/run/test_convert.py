"""``genoctx convert``: what is not changed keeps its bytes, what is changed is what it should be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from converted import DENSE, NORM, run, trained
from hub_checkpoint import MTP_LAYER, TRUNK, dequantised, is_trunk, read_hub, same_bits, write_published
from safetensors.torch import load_file, save_file
from torch import Tensor

from genoctx.cli import app
from genoctx.cli.convert import parse_layers
from genoctx.config import preset_model
from genoctx.errors import CheckFailed, InputError, UsageError, WouldNotFit
from genoctx.model.fp8 import quantise_fp8
from genoctx.model.hub_config import read_hub_config, to_hub
from genoctx.model.hub_write import held, write_shards
from genoctx.model.weights import load_model
from genoctx.run import convert as module
from genoctx.run.convert_plan import Checkpoint, Plan
from genoctx.run.convert_sources import base_of
from genoctx.run.rundir import checkpoint_at

# hf


def test_a_copy_keeps_every_byte(hub: Path, stored: dict[str, Tensor], tmp_path: Path) -> None:
    done = run(hub, tmp_path / "copy", "hf", shard_bytes=100_000, verify=True)
    copied = read_hub(tmp_path / "copy")
    assert copied.keys() == stored.keys()
    assert all(same_bits(t, stored[name]) for name, t in copied.items())
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "copy" / name).read_bytes() == (hub / name).read_bytes()
    assert done.became == {"copied byte for byte": len(stored)} and done.tensors == len(stored)
    sizes = [p.stat().st_size for p in (tmp_path / "copy").glob("*.safetensors")]
    assert len(done.files) == len(sizes) > 10 and done.verified
    index = json.loads((tmp_path / "copy/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == stored.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in stored.values()) == done.size


def test_every_tensor_of_a_file_is_aligned(tmp_path: Path) -> None:
    """Readers view the numbers where they lie, which torch refuses at an odd place."""
    kinds = {"a": torch.float8_e4m3fn, "b": torch.float32, "c": torch.bfloat16, "d": torch.float8_e4m3fn}
    tensors = {name: torch.tensor([1.0, 2.0, 3.0]).to(kind) for name, kind in kinds.items()}
    write_shards(tmp_path, [held(name, tensor) for name, tensor in tensors.items()])
    raw = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert size % 8 == 0
    assert all(header[name]["data_offsets"][0] % kind.itemsize == 0 for name, kind in kinds.items())
    assert all(same_bits(t, tensors[name]) for name, t in load_file(tmp_path / "model.safetensors").items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_training_changes_just_what_it_changed(
    hub: Path, stored: dict[str, Tensor], tmp_path: Path, dtype: torch.dtype
) -> None:
    source = trained(hub, tmp_path / "trained", {NORM, DENSE}, dtype)
    done = run(source, tmp_path / "hf", "hf", base=hub, verify=True)
    result, model = read_hub(tmp_path / "hf"), read_hub(source)
    assert (tmp_path / "hf/config.json").read_bytes() == (hub / "config.json").read_bytes()
    assert (tmp_path / "hf/tokenizer.json").exists()
    scale = DENSE + "_scale_inv"
    for name in stored:
        assert same_bits(result[name], stored[name]) == (name not in {NORM, DENSE, scale}), name
    assert same_bits(result[NORM], model[NORM].bfloat16())
    wanted = quantise_fp8(model[DENSE], (32, 32))
    assert same_bits(result[DENSE], wanted[0]) and same_bits(result[scale], wanted[1])
    assert done.became["changed"] == 1 and done.became["changed and rounded to float8 again"] == 2


def test_a_source_that_went_through_bfloat16_counts_as_unchanged(hub: Path, tmp_path: Path) -> None:
    """``--to genoctx`` rounds float8 times scale; trained on in float32, frozen weights are still the base's."""
    run(hub, tmp_path / "half", "genoctx")
    source = trained(tmp_path / "half", tmp_path / "trained", {NORM}, torch.float32)
    done = run(source, tmp_path / "hf", "hf", base=hub)
    assert (
        done.became["changed"] == 1 and sum(done.became.values()) == done.became["copied byte for byte"] + 1
    )


def test_another_dtype_dequantises_everything(hub: Path, stored: dict[str, Tensor], tmp_path: Path) -> None:
    run(hub, tmp_path / "half", "hf", dtype=torch.bfloat16, verify=True)
    result = read_hub(tmp_path / "half")
    assert result.keys() == {name for name in stored if not name.endswith("_scale_inv")}
    assert {t.dtype for t in result.values()} == {torch.bfloat16, torch.float32}
    for name, tensor in result.items():
        if name + "_scale_inv" in stored:
            assert torch.equal(tensor, dequantised(stored, name).bfloat16())
        else:
            assert same_bits(tensor, stored[name])
    raw = json.loads((tmp_path / "half/config.json").read_text())
    before = json.loads((hub / "config.json").read_text())
    assert raw["text_config"] == before["text_config"] and before.pop("quantization_config")
    assert raw == before


def test_float32_leaves_vision_and_mtp_norms_alone(
    hub: Path, stored: dict[str, Tensor], tmp_path: Path
) -> None:
    run(hub, tmp_path / "single", "hf", dtype=torch.float32)
    result = read_hub(tmp_path / "single")
    mtp = f"{TRUNK}layers.{MTP_LAYER}."
    assert result[NORM].dtype == result[mtp + "mlp.shared_experts.up_proj.weight"].dtype == torch.float32
    for name in (mtp + "enorm.weight", "model.visual.blocks.0.attn.qkv.weight"):
        assert same_bits(result[name], stored[name])
    assert json.loads((tmp_path / "single/config.json").read_text())["text_config"]["dtype"] == "float32"


def test_a_model_from_scratch_is_its_own_base(tiny_fixtures: Path, tmp_path: Path) -> None:
    source = trained(tiny_fixtures / "checkpoint", tmp_path / "mine", {NORM})
    done = run(source, tmp_path / "hf", "hf")
    assert done.base == source
    assert all(same_bits(t, read_hub(source)[name]) for name, t in read_hub(tmp_path / "hf").items())


def test_a_base_of_another_model_is_refused(hub: Path, tmp_path: Path) -> None:
    run(hub, tmp_path / "part", "genoctx", layers=(0, 1, 2, 3))
    with pytest.raises(InputError) as caught:
        run(tmp_path / "part", tmp_path / "hf", "hf", base=hub)
    assert "num_hidden_layers is 9 in its config.json, 4 in the model" in caught.value.message


# genoctx


def test_the_text_model_alone(hub: Path, stored: dict[str, Tensor], tmp_path: Path) -> None:
    done = run(hub, tmp_path / "g", "genoctx", verify=True)
    result = load_file(tmp_path / "g/model.safetensors")
    assert result.keys() == {n for n in stored if is_trunk(n) and not n.endswith("_scale_inv")}
    for name, tensor in result.items():
        wanted = dequantised(stored, name).bfloat16() if name + "_scale_inv" in stored else stored[name]
        assert same_bits(tensor, wanted), name
    assert read_hub_config(tmp_path / "g/config.json") == read_hub_config(hub / "config.json")
    assert json.loads((tmp_path / "g/config.json").read_text()) == to_hub(
        read_hub_config(hub / "config.json")
    )
    assert (tmp_path / "g/tokenizer.json").exists()
    assert set(done.became) == {"copied byte for byte", "dequantised"}
    loaded, direct = (load_model(p, dtype=torch.bfloat16) for p in (tmp_path / "g", hub))
    pairs = zip(loaded.parameters(), direct.parameters(), strict=True)
    assert all(same_bits(a.data, b.data) for a, b in pairs)


def test_a_part_of_the_layers(hub: Path, tmp_path: Path) -> None:
    run(hub, tmp_path / "part", "genoctx", layers=(2, 3, 8), dtype=torch.float32, verify=True)
    part, wanted = load_model(tmp_path / "part"), load_model(hub, layers=(2, 3, 8))
    assert part.config == wanted.config and part.config.num_hidden_layers == 3
    assert all(torch.equal(a, b) for a, b in zip(part.parameters(), wanted.parameters(), strict=True))
    with pytest.raises(UsageError, match="no hub checkpoint"):
        run(hub, tmp_path / "no", "hf", layers=(0,))


def test_the_base_is_found_again(hub: Path, tmp_path: Path) -> None:
    """hub -> converted -> run -> run that starts from its checkpoint."""
    run(hub, tmp_path / "g", "genoctx")
    at = tmp_path / "g"
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.resolved.json").write_text(json.dumps({"train": {"init": str(at)}}))
        at = trained(at, folder / "checkpoints/step-000002", {NORM})
        (at / "COMPLETE").write_text("2\n")
    assert checkpoint_at(tmp_path / "two") == at and base_of(at) == hub.resolve()
    done = run(at, tmp_path / "hf", "hf")
    assert done.base == hub.resolve() and done.became["changed"] == 1
    shutil.rmtree(tmp_path / "g")
    assert base_of(at) == tmp_path / "one/checkpoints/step-000002", "as far as the trail goes"
    with pytest.raises(InputError, match="neither a checkpoint"):
        checkpoint_at(tmp_path / "three")


# checks and places


def flip(name: str) -> Callable[..., list[str]]:
    """``write_shards`` on a disk that flips one bit of one tensor."""
    write = module.write_shards

    def broken(folder: Path, *args: object, **kwargs: object) -> list[str]:
        files = write(folder, *args, **kwargs)  # type: ignore[arg-type]
        raw = load_file(folder / files[0])
        raw[name].view(torch.uint8)[-1] ^= 1
        save_file(raw, folder / files[0])
        return files

    return broken


@pytest.mark.parametrize("name", [NORM, "model.visual.blocks.0.attn.qkv.weight", DENSE + "_scale_inv"])
def test_verify_sees_a_flipped_bit(
    hub: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "write_shards", flip(name))
    with pytest.raises(CheckFailed) as caught:
        run(hub, tmp_path / "copy", "hf", verify=True)
    assert f"{name} has other bits" in caught.value.message and caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space"):
        run(hub, tmp_path / "new/copy", "hf")
    assert list(tmp_path.iterdir()) == []


def test_no_room(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda p: usage._replace(free=1000))
    with pytest.raises(WouldNotFit, match="GB free"):
        run(hub, tmp_path / "copy", "hf")
    assert list(tmp_path.iterdir()) == []


def test_places_that_are_taken(hub: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    run(hub, target, "hf")
    with pytest.raises(UsageError, match="exists already"):
        run(hub, target, "genoctx")
    assert not (target / "conversion.json").exists()
    run(hub, target, "genoctx", force=True)
    assert (target / "conversion.json").exists() and [p.name for p in tmp_path.iterdir()] == ["copy"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/config.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a checkpoint"):
        run(hub, tmp_path / "notes", "hf", force=True)
    for place in (hub, hub / "inside", hub.parent):
        with pytest.raises(UsageError, match="overlap"):
            run(hub, place, "hf", force=True)


def test_the_published_checkpoint_at_full_scale(tmp_path: Path) -> None:
    """Every tensor of every result is planned: names, dtypes, sizes; no number is read."""
    from contextlib import ExitStack

    write_published(tmp_path)
    raw = to_hub(preset_model("glm-5.3-flash"))
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with ExitStack() as stack:
        whole = Checkpoint.open(tmp_path, stack)
        assert whole.fit.problems == []
        kept = Plan(whole, whole, None).hf()
        assert len(kept) == 76_108 and sum(e.size for e in kept) == 328_326_771_576
        half = Plan(whole, whole, torch.bfloat16)
        assert len(half.hf()) == 76_108 - 37_338
        held = sum(e.size // 4 for e in half.hf() if e.dtype == "F32")
        assert sum(e.size for e in half.hf()) == 2 * 321_323_031_390 + 2 * held
        trunk = Plan(whole, whole, None).genoctx()
        assert {e.dtype for e in trunk} == {"BF16", "F32"}
        numbers = sum(e.size // (2 if e.dtype == "BF16" else 4) for e in trunk)
        assert numbers == 313_326_811_966


# the command


def test_the_command(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "half")
    args = ["convert", str(hub), target, "--to", "genoctx", "--layers", "0-2,4", "--verify", "--json"]
    assert app.run([*args, "--dtype", "bfloat16", "--max-shard-size", "100kb"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] == target and found["verified"] and len(found["files"]) > 1
    assert found["tensors"] == sum(found["became"].values())
    assert load_model(tmp_path / "half").config.num_hidden_layers == 4
    assert app.run(args) == 2
    assert "exists already" in capsys.readouterr().err
    assert app.run(["convert", str(hub), str(tmp_path / "copy"), "--to", "hf"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "copied byte for byte" in err


def test_layers_as_people_write_them() -> None:
    assert parse_layers("") is None
    assert parse_layers("0-3, 7,40 - 41") == (0, 1, 2, 3, 7, 40, 41)
    for text in ("3-1", "a", "1,,2", "-1", "1-"):
        with pytest.raises(UsageError, match="--layers"):
            parse_layers(text)
