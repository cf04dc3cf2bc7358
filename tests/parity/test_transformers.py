"""Our model and our files against Hugging Face's glm5_next itself, where the extra `hf` is installed."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_checkpoint import make_hub
from safetensors.torch import load_file
from torch import Tensor

from genoctx.cli.console import Console
from genoctx.model.hub_names import hub_tensors
from genoctx.model.hybrid import Hybrid
from genoctx.model.weights import load_model, save_weights
from genoctx.run.convert import Options, convert
from genoctx.run.peer_transformers import is_installed

if not is_installed():  # asked of the adapter, which also keeps their CPU path in plain torch
    pytest.skip("transformers with glm5_next is not here: install genoctx[hf]", allow_module_level=True)
transformers: Any = importlib.import_module("transformers")


def their_model(folder: Path) -> Any:
    return transformers.Glm5NextForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@torch.no_grad()
def assert_equal_logits(ours: Hybrid, theirs: Any) -> None:
    # below the image and video tokens of the fixture (240..245)
    ids = torch.randint(0, 236, (1, 40), generator=torch.Generator().manual_seed(139))
    want: Tensor = theirs(input_ids=ids, use_cache=False).logits
    out = ours(ids, ours.initial_carry(1, 40))
    assert (out.hidden @ ours.lm_head.weight.T - want).abs().max() < 2e-4


def test_logits_of_the_tiny_checkpoint(tiny_fixtures: Path) -> None:
    folder = tiny_fixtures / "checkpoint"
    assert_equal_logits(load_model(folder), their_model(folder))


def trained(folder: Path, target: Path) -> Path:
    """A checkpoint that genoctx could have trained out of ``folder``."""
    model = load_model(folder, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(7)
    for name, tensor in hub_tensors(model):
        if name.endswith("proj.weight"):
            tensor += (0.02 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
    target.mkdir()
    save_weights(model, target)
    return target


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_our_file_loads_there(tiny_fixtures: Path, tmp_path: Path, dtype: torch.dtype | None) -> None:
    base = tiny_fixtures / "checkpoint"
    source = trained(base, tmp_path / "trained")
    options = Options(form="hf", base=base, dtype=dtype, shard_bytes=200_000, verify=True)
    convert(source, tmp_path / "hf", options, monitor=Console(verbosity=-1))
    theirs = their_model(tmp_path / "hf")
    assert_equal_logits(load_model(source), theirs)
    with pytest.raises(AssertionError):
        assert_equal_logits(load_model(base), theirs)


def test_their_file_loads_here(tiny_fixtures: Path, tmp_path: Path) -> None:
    """With what their ``save_pretrained`` changes: float32 convolutions, ``indexed_attention``."""
    source = trained(tiny_fixtures / "checkpoint", tmp_path / "trained")
    shutil.copy(tiny_fixtures / "checkpoint/config.json", source)
    theirs = transformers.Glm5NextForConditionalGeneration.from_pretrained(source, dtype=torch.bfloat16)
    theirs.save_pretrained(tmp_path / "saved", max_shard_size="300KB")
    raw = json.loads((tmp_path / "saved/config.json").read_text())
    assert "indexed_attention" in raw["text_config"]["layer_types"]
    ours = load_model(tmp_path / "saved")
    assert_equal_logits(ours, their_model(source))
    stored = load_file(source / "model.safetensors")
    for name, tensor in hub_tensors(ours):
        assert torch.equal(tensor, stored[name].float()), name


def test_their_file_becomes_ours_and_theirs_again(tiny_fixtures: Path, tmp_path: Path) -> None:
    theirs = their_model(tiny_fixtures / "checkpoint")
    theirs.save_pretrained(tmp_path / "saved")
    quiet = Console(verbosity=-1)
    convert(tmp_path / "saved", tmp_path / "g", Options(form="genoctx"), monitor=quiet)
    done = convert(tmp_path / "g", tmp_path / "back", Options(form="hf", verify=True), monitor=quiet)
    assert set(done.became) == {"copied byte for byte"} and done.base == tmp_path / "saved"
    assert_equal_logits(load_model(tmp_path / "g"), their_model(tmp_path / "back"))


def test_a_float8_checkpoint_in_bfloat16_loads_there(tiny_fixtures: Path, tmp_path: Path) -> None:
    make_hub(tiny_fixtures / "checkpoint", tmp_path / "hub")
    options = Options(form="hf", dtype=torch.bfloat16)
    convert(tmp_path / "hub", tmp_path / "hf", options, monitor=Console(verbosity=-1))
    assert_equal_logits(
        load_model(tmp_path / "hub", dtype=torch.bfloat16).float(), their_model(tmp_path / "hf")
    )
