"""Weights in the hub layout: safetensors files with the names of spec section 4.2.

Our parameters carry the hub's names without the prefix, except that the experts of a layer are
grouped into two tensors. FP8 tensors (a companion ``NAME_scale_inv`` exists) are dequantised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from genoctx.errors import InputError
from genoctx.model.block import LM_ONLY, Objectives
from genoctx.model.config import DSA, KDA, ModelConfig, read_hub_config
from genoctx.model.hybrid import Hybrid, build

PREFIX = "model.language_model."
FP8_BLOCK = 128
SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


def hub_name(name: str) -> str:
    """Hub name of one of our ungrouped parameters."""
    return name if name.startswith("lm_head.") else PREFIX + name


def dequantise_fp8(weight: Tensor, scale_inv: Tensor, block: int = FP8_BLOCK) -> Tensor:
    """W[i, j] = fp8[i, j] * scale_inv[i // block, j // block], in float32 (spec section 4.3)."""
    rows, columns = weight.shape
    scale = scale_inv.float().repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
    return weight.float() * scale


class HubReader:
    """Tensors of a checkpoint directory by hub name, one at a time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._files: dict[str, Any] = {}
        for path in self._paths():
            try:
                handle = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise InputError(
                    f"cannot read weights {path}: {error}",
                    "the file is truncated or not safetensors; fetch it again",
                ) from error
            self._files.update(dict.fromkeys(handle.keys(), handle))

    def _paths(self) -> list[Path]:
        index = self.directory / INDEX_FILE
        if index.exists():
            return [
                self.directory / f for f in sorted(set(json.loads(index.read_text())["weight_map"].values()))
            ]
        if not (self.directory / SINGLE_FILE).exists():
            raise InputError(
                f"no weights in {self.directory}",
                f"expected {SINGLE_FILE} or {INDEX_FILE} beside config.json",
            )
        return [self.directory / SINGLE_FILE]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """The tensor, dequantised where a scale goes with it."""
        tensor: Tensor = self._files[name].get_tensor(name)
        scale = name + "_scale_inv"
        return (
            dequantise_fp8(tensor, self._files[scale].get_tensor(scale)) if scale in self._files else tensor
        )


def _parts(name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(hub name, view of the parameter) pairs that one of our parameters is made of."""
    if name.endswith("mlp.experts.gate_up_proj"):
        stem, inner = hub_name(name.removesuffix("gate_up_proj")), parameter.shape[1] // 2
        for e, expert in enumerate(parameter):
            yield f"{stem}{e}.gate_proj.weight", expert[:inner]
            yield f"{stem}{e}.up_proj.weight", expert[inner:]
    elif name.endswith("mlp.experts.down_proj"):
        stem = hub_name(name.removesuffix("down_proj"))
        for e, expert in enumerate(parameter):
            yield f"{stem}{e}.down_proj.weight", expert
    else:
        yield hub_name(name), parameter


def hub_tensors(model: Hybrid) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model under its hub name, as views."""
    for name, parameter in model.named_parameters():
        yield from _parts(name, parameter.detach())


@torch.no_grad()
def load_weights(model: Hybrid, directory: Path) -> None:
    """Fill ``model`` from a hub-layout directory; all problems are listed in one InputError.

    Tensors the text trunk does not have (MTP block, vision tower) are left alone.
    """
    problems = []
    with ExitStack() as stack:
        reader = HubReader(directory, stack)
        for name, target in hub_tensors(model):
            if name not in reader:
                problems.append(f"missing {name}")
                continue
            tensor = reader.get(name)
            if tensor.shape != target.shape:
                problems.append(f"{name} is {list(tensor.shape)}, the model needs {list(target.shape)}")
                continue
            target.copy_(tensor)
    if problems:
        shown = "\n  ".join(problems[:20]) + (
            f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        )
        raise InputError(
            f"{directory} does not fit the model:\n  {shown}", "compare its config.json with the preset"
        )


def load_model(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    objectives: Objectives = LM_ONLY,
    device: str | torch.device = "cpu",
) -> Hybrid:
    """A model from a hub-layout checkpoint directory (``config.json`` + safetensors)."""
    model = build(
        read_hub_config(directory / "config.json"),
        dtype=dtype,
        objectives=objectives,
        device=device,
        seed=None,
    )
    load_weights(model, directory)
    return model


def hub_config(config: ModelConfig) -> dict[str, Any]:
    """A ``config.json`` that ``from_hub`` and Hugging Face both read."""
    text = config.to_dict()
    low_rank = text.pop("linear_gate_low_rank")
    if low_rank != config.linear_head_dim:
        text["linear_gate_low_rank"] = low_rank
    text |= {
        "model_type": "glm5_next_text",
        "num_key_value_heads": config.num_attention_heads,
        "qk_rope_head_dim": 0,
        "linear_attn_config": {
            "num_heads": config.linear_num_heads,
            "head_dim": config.linear_head_dim,
            "short_conv_kernel_size": config.linear_conv_kernel_dim,
            "gate_lower_bound": config.linear_lower_bound,
            "kda_layers": [i for i, kind in enumerate(config.layer_types) if kind == KDA],
            "full_attn_layers": [i for i, kind in enumerate(config.layer_types) if kind == DSA],
        },
    }
    return {"model_type": "glm5_next", "text_config": text}


def save_weights(model: Hybrid, directory: Path) -> None:
    """Write ``config.json`` and one safetensors file into an existing directory.

    Not atomic by itself: checkpoints write into a temporary directory and rename it.
    """
    tensors = {name: tensor.contiguous().clone() for name, tensor in hub_tensors(model)}
    save_file(tensors, directory / SINGLE_FILE, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hub_config(model.config), indent=1) + "\n")
