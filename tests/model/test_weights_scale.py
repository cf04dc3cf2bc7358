"""The published checkpoint without its numbers, and how much memory loading and saving take."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from hub_checkpoint import make_hub, published, read_hub, write_published
from torch import Tensor

from genoctx.config import preset_model
from genoctx.model.config import ModelConfig
from genoctx.model.hub_config import to_hub
from genoctx.model.hub_files import HubFiles
from genoctx.model.hub_fit import fit
from genoctx.model.hybrid import build
from genoctx.model.weights import load_model

BLOCK = (128, 128)


def test_the_list_of_names_is_the_published_one() -> None:
    tensors = list(published())
    assert len(tensors) == len({name for name, _, _ in tensors}) == 76_108
    assert sum(name.endswith("_scale_inv") for name, _, _ in tensors) == 37_338
    numbers = sum(math.prod(shape) for name, shape, _ in tensors if not name.endswith("_scale_inv"))
    assert numbers == 321_323_031_390


def test_every_published_name_and_shape_has_its_place(tmp_path: Path) -> None:
    assert write_published(tmp_path) == 328_326_771_576
    config = preset_model("glm-5.3-flash")
    with HubFiles(tmp_path) as files:
        found = fit(build(config, dtype=torch.bfloat16, device="meta"), files, BLOCK)
        assert found.problems == []
        trunk = set(found.copies)
        scales = {name for name in files.names if found.names.is_scale(name)}
        foreign = {name for name in files.names if found.names.is_foreign(name)}
        assert trunk | scales | foreign == files.names and len(files.names) == 76_108
        assert not trunk & scales and not trunk & foreign
        assert sum(t.numel() for t in found.copies.values()) == 313_326_811_966
        mtp = foreign - scales
        numbers = sum(math.prod(files.tensors[name].shape) for name in mtp)
        assert numbers == 7_432_592_416 + 563_627_008
        assert sum(name.startswith("model.visual.") for name in foreign) == 347


def test_four_published_layers_out_of_their_own_shards(tmp_path: Path) -> None:
    write_published(tmp_path)
    config = ModelConfig(num_hidden_layers=4)
    model = build(config, dtype=torch.bfloat16, device="meta")
    with HubFiles(tmp_path) as files:
        whole = fit(model, files, BLOCK)
        assert whole.problems == [
            "extra layers 4-44: the model has 4; `genoctx convert --layers` takes a part"
        ]
        needed = {files.tensors[name].file for name in whole.copies}
    for path in tmp_path.glob("*.safetensors"):
        if path.name not in needed:
            path.unlink()
    with HubFiles(tmp_path) as files:
        assert fit(model, files, BLOCK, range(4)).problems == []
        assert len(fit(model, files, BLOCK).problems) > 40


def test_one_tensor_at_a_time_is_alive(
    tiny_fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hub(tiny_fixtures / "checkpoint", tmp_path)
    alive, most = 0, 0
    read = HubFiles.read

    def freed(size: int) -> None:
        nonlocal alive
        alive -= size

    def counting(self: HubFiles, name: str) -> Tensor:
        nonlocal alive, most
        tensor = read(self, name)
        alive += tensor.nbytes
        weakref.finalize(tensor, freed, tensor.nbytes)
        most = max(most, alive)
        return tensor

    monkeypatch.setattr(HubFiles, "read", counting)
    load_model(tmp_path)
    stored = read_hub(tmp_path)
    largest = max(
        t.nbytes + (s.nbytes if (s := stored.get(n + "_scale_inv")) is not None else 0)
        for n, t in stored.items()
    )
    assert 0 < most <= largest


MEASURE = """
import sys
from pathlib import Path
import torch
from genoctx.model.weights import load_model, save_weights

def peak():
    # not getrusage: that begins with what the parent had when it forked
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

load_model(Path(sys.argv[3]), dtype=torch.bfloat16)  # imports what a first model needs
before = peak()
model = load_model(Path(sys.argv[1]), dtype=torch.bfloat16)
loaded = peak()
save_weights(model, Path(sys.argv[2]))
print(before, loaded, peak(), sum(p.nbytes for p in model.parameters()), max(p.nbytes for p in model.parameters()))
"""


def test_peak_memory_of_loading_and_saving(tiny_fixtures: Path, tmp_path: Path) -> None:
    """In a process of its own: the destination and one tensor to load, the model and no copy to save."""
    from genoctx.model.weights import save_weights

    config = ModelConfig(
        vocab_size=65536, hidden_size=320, num_hidden_layers=4, mlp_layer_types=("dense",) * 4,
        intermediate_size=16384, linear_num_heads=4, linear_head_dim=32, linear_gate_low_rank=32,
        num_attention_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, v_head_dim=32,
        index_n_heads=4, index_head_dim=32, index_topk=32, pad_token_id=None,
    )  # fmt: skip
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    model = build(config, dtype=torch.bfloat16, seed=None)
    for p in model.parameters():
        p.data.zero_()
    save_weights(model, tmp_path / "a", shard_bytes=30_000_000)
    del model
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 4
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "a"), str(tmp_path / "b"), str(tiny_fixtures / "checkpoint")],
        capture_output=True, text=True, check=True,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"},  # what is freed goes back, whatever came before
    )  # fmt: skip
    before, loaded, saved, destination, largest = map(int, done.stdout.split())
    slack = 16 << 20
    assert destination > 200e6 and largest < 50e6
    assert loaded - before <= destination + largest + slack
    assert saved - loaded <= slack


def test_config_of_the_published_model_survives() -> None:
    assert to_hub(ModelConfig())["text_config"]["linear_attn_config"]["full_attn_layers"] == list(
        range(3, 45, 4)
    )
