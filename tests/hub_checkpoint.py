"""Checkpoints as the hub has them: the published names and shapes, and a tiny one with every part.

Written from spec section 4.2, not from the code under test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TRUNK = "model.language_model."
BLOCK = 32
MTP_LAYER = 9  # of the tiny checkpoint

Published = tuple[str, tuple[int, ...], str]


def published() -> Iterator[Published]:
    """(name, shape, dtype) of every tensor of GLM-5.3-Flash in float8.

    The spec has the vision tower's 347 tensors as a total alone: all but one hold a single number here.
    """
    yield TRUNK + "embed_tokens.weight", (154880, 4096), "BF16"
    yield "lm_head.weight", (154880, 4096), "BF16"
    yield TRUNK + "norm.weight", (4096,), "BF16"
    for i in range(46):
        layer = f"{TRUNK}layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", (4096,), "BF16"
        yield from _dsa(layer + "self_attn.") if i % 4 == 3 or i == 45 else _kda(layer + "self_attn.")
        yield from _dense(layer + "mlp.", 12288) if i < 3 else _moe(layer + "mlp.")
        if i < 45:
            yield from _hyper_connections(layer)
    yield from _mtp(f"{TRUNK}layers.45.")
    for n in range(346):
        yield f"model.visual.blocks.{n % 24}.part{n}.weight", (1,), "BF16"
    yield "model.visual.merger.weight", (563_627_008 - 346,), "BF16"


def _hyper_connections(layer: str) -> Iterator[Published]:
    for site in ("attn", "ffn"):
        yield f"{layer}hc_{site}_fn", (24, 16384), "BF16"
        yield f"{layer}hc_{site}_base", (24,), "F32"
        yield f"{layer}hc_{site}_scale", (3,), "F32"


def _mtp(layer: str) -> Iterator[Published]:
    yield layer + "eh_proj.weight", (4096, 8192), "BF16"
    for name in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{layer}{name}.weight", (4096,), "BF16"


def _kda(at: str) -> Iterator[Published]:
    for x in "qkv":
        yield f"{at}{x}_proj.weight", (8192, 4096), "BF16"
        yield f"{at}{x}_conv1d.weight", (8192, 1, 4), "BF16"
    for x in "fg":
        yield f"{at}{x}_a_proj.weight", (128, 4096), "BF16"
        yield f"{at}{x}_b_proj.weight", (8192, 128), "BF16"
    yield at + "b_proj.weight", (64, 4096), "BF16"
    yield at + "o_norm.weight", (128,), "BF16"
    yield at + "o_proj.weight", (4096, 8192), "BF16"
    yield at + "A_log", (64,), "F32"
    yield at + "dt_bias", (8192,), "F32"


def _dsa(at: str) -> Iterator[Published]:
    yield from _float8(at + "q_a_proj.weight", (1536, 4096))
    yield from _float8(at + "q_b_proj.weight", (16384, 1536))
    yield from _float8(at + "kv_a_proj_with_mqa.weight", (512, 4096))
    yield from _float8(at + "o_proj.weight", (4096, 16384))
    yield at + "kv_b_proj.weight", (32768, 512), "BF16"
    yield at + "q_a_layernorm.weight", (1536,), "BF16"
    yield at + "kv_a_layernorm.weight", (512,), "BF16"
    yield at + "indexer.wq_b.weight", (4096, 1536), "BF16"
    yield at + "indexer.wk.weight", (128, 4096), "BF16"
    yield at + "indexer.weights_proj.weight", (32, 4096), "BF16"
    yield at + "indexer.k_norm.weight", (128,), "BF16"
    yield at + "indexer.k_norm.bias", (128,), "BF16"
    yield at + "indexer.index_kpool_compress_ape", (4, 128), "BF16"
    yield at + "indexer.index_kpool_compress_gate", (128, 4096), "BF16"


def _dense(at: str, inner: int) -> Iterator[Published]:
    for name in ("gate_proj", "up_proj"):
        yield from _float8(f"{at}{name}.weight", (inner, 4096))
    yield from _float8(at + "down_proj.weight", (4096, inner))


def _moe(at: str) -> Iterator[Published]:
    yield at + "gate.weight", (288, 4096), "BF16"
    yield at + "gate.e_score_correction_bias", (288,), "F32"
    yield from _dense(at + "shared_experts.", 2048)
    for e in range(288):
        yield from _dense(f"{at}experts.{e}.", 2048)


def _float8(name: str, shape: tuple[int, int]) -> Iterator[Published]:
    yield name, shape, "F8_E4M3"
    yield name + "_scale_inv", (math.ceil(shape[0] / 128), math.ceil(shape[1] / 128)), "F32"


def write_published(folder: Path, shards: int = 62) -> int:
    """The whole published checkpoint with files of their true length, but no numbers; returns its bytes.

    The files are sparse: they take up no room on the disk.
    """
    width = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
    tensors, places, total = list(published()), {}, 0
    for k in range(shards):
        file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        header, end = {}, 0
        for name, shape, dtype in tensors[k * len(tensors) // shards : (k + 1) * len(tensors) // shards]:
            begin, end = end, end + math.prod(shape) * width[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            places[name] = file
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as handle:
            handle.write(len(text).to_bytes(8, "little") + text)
            handle.truncate(8 + len(text) + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return total


def is_float8(name: str) -> bool:
    """Whether the published checkpoint stores the tensor in float8 (by its name in the tiny one)."""
    attention = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
    mlp = ("gate_proj", "up_proj", "down_proj")
    parts = name.split(".")
    if not name.startswith(TRUNK):
        return False
    if "self_attn" in parts:
        in_dsa = parts[parts.index("layers") + 1] in ("3", "7", str(MTP_LAYER))
        return in_dsa and parts[-2] in (*attention, "o_proj") and parts[-1] == "weight"
    return "mlp" in parts and parts[-2] in mlp


def float8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as float8 in blocks of ``BLOCK`` with random scales: nothing that rounding could restore."""
    grid = [-(-n // BLOCK) for n in weight.shape]
    scale = torch.rand(grid, generator=torch.Generator().manual_seed(weight.numel())) * 0.01 + 0.001
    spread = scale.repeat_interleave(BLOCK, 0)[: weight.shape[0]].repeat_interleave(BLOCK, 1)
    return (weight.float() / spread[:, : weight.shape[1]]).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def make_hub(tiny: Path, folder: Path, shards: int = 5) -> dict[str, Tensor]:
    """The tiny fixture, which has an MTP layer and a vision tower, as the hub would have it; returns its tensors.

    Float8 where the published checkpoint has it, shards, an index and companions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = load_file(tiny / "model.safetensors")
    for name in [n for n in tensors if is_float8(n)]:
        tensors[name], tensors[name + "_scale_inv"] = float8(tensors[name])
    write_hub(folder, tensors, shards)
    raw = json.loads((tiny / "config.json").read_text())
    raw["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["lm_head"],
    }
    # spelled as nobody here would write it
    (folder / "config.json").write_text(json.dumps(raw, separators=(",", ":  ")))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {}}}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return tensors


def write_hub(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """The tensors in ``shards`` files with an index, by the reference implementation of the format."""
    names, places = sorted(tensors), {}
    for k in range(shards):
        file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        part = names[k::shards]
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def read_hub(folder: Path) -> dict[str, Tensor]:
    """Every tensor of every file in a folder, by the reference implementation."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        part = load_file(path)
        assert not found.keys() & part.keys()
        found |= part
    return found


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def dequantised(tensors: dict[str, Tensor], name: str) -> Tensor:
    """float32 numbers of a tensor, block by block as the equation says."""
    if name + "_scale_inv" not in tensors:
        return tensors[name].float()
    out, scale = tensors[name].float(), tensors[name + "_scale_inv"]
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            out[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK] *= scale[i, j]
    return out


def is_trunk(name: str) -> bool:
    """Whether a tensor of the tiny hub checkpoint belongs to the text model (scales of it included)."""
    return not name.startswith(("model.visual.", f"{TRUNK}layers.{MTP_LAYER}."))
