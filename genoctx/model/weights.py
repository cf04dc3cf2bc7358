"""Weights of a model from and to a directory in the hub layout: safetensors, ``config.json``.

What many ranks wrote (genoctx/model/shard_files.py) is read the same way.
Loading goes tensor by tensor: beside the model itself, the memory of one stored tensor is needed.
Tensors in blocks of float8 are dequantised on the way (genoctx/model/fp8.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from genoctx.model.block import LM_ONLY, Objectives
from genoctx.model.config import ModelConfig
from genoctx.model.fp8 import Block, dequantise_into
from genoctx.model.hub_config import float8_block, read_hub_config, read_hub_json, to_hub
from genoctx.model.hub_files import WeightFiles
from genoctx.model.hub_fit import CONFIG_FILE, config_problems, fit, refuse, slice_config
from genoctx.model.hub_names import StoredNames, hub_tensors
from genoctx.model.hub_write import SHARD_BYTES, held, write_shards
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.shard_files import open_files


@torch.no_grad()
def load_weights(model: Hybrid, directory: Path, layers: Sequence[int] | None = None) -> None:
    """Fill ``model`` from a hub-layout or sharded directory; all problems are listed in one InputError beforehand.

    ``layers[j]`` names the checkpoint's layer that becomes our layer j; without it the numbers must agree.
    A multi-token-prediction layer and a vision tower are left alone. Adapters in ``directory`` are added to
    the weights they belong to.
    """
    from genoctx.model.lora_file import is_adapter, load_merged

    if is_adapter(directory) and layers is None:
        load_merged(model, directory)
        return
    with open_files(directory) as files:
        block = float8_block(read_hub_json(directory / CONFIG_FILE))
        found = fit(model, files, block, layers)
        problems = config_problems(model.config, directory, layers) + found.problems
        refuse(directory, problems, damaged=bool(files.faults))
        by_place = sorted(found.copies, key=lambda n: (files.tensors[n].file, files.tensors[n].start))
        for name in by_place:
            read_into(found.copies[name], files, found.names, name, block)


def read_into(target: Tensor, files: WeightFiles, names: StoredNames, name: str, block: Block) -> None:
    """Copy one stored tensor into ``target`` of the same shape, dequantised where a scale goes with it."""
    if scale := names.scale(name):
        dequantise_into(target, files.read(name), files.read(scale), block)
    else:
        target.copy_(files.read(name))


def model_config(directory: Path) -> ModelConfig:
    """The architecture of a checkpoint, or of what a directory of adapters is added to. Raises InputError."""
    from genoctx.model.lora_file import is_adapter, with_base

    return (
        model_config(with_base(directory).base)
        if is_adapter(directory)
        else read_hub_config(directory / CONFIG_FILE)
    )


def load_model(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    objectives: Objectives = LM_ONLY,
    device: str | torch.device = "cpu",
    layers: Sequence[int] | None = None,
) -> Hybrid:
    """A model from a hub-layout checkpoint directory (``config.json`` + safetensors), or of some layers.

    A directory of adapters gives the model they belong to, with these beside its weights.
    """
    from genoctx.model.lora_file import is_adapter, load_adapted

    if is_adapter(directory) and layers is None:
        return load_adapted(directory, dtype=dtype, objectives=objectives, device=device)
    config = read_hub_config(directory / CONFIG_FILE)
    if layers is not None:
        config = slice_config(config, layers)
    model = build(config, dtype=dtype, objectives=objectives, device=device, seed=None)
    load_weights(model, directory, layers)
    return model


def save_weights(model: Hybrid, directory: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write ``config.json`` and safetensors files into an existing directory, one tensor in memory at a time.

    Not atomic by itself: checkpoints write into a temporary directory and rename it.
    """
    entries = [held(name, tensor) for name, tensor in hub_tensors(model)]
    write_shards(directory, entries, shard_bytes=shard_bytes)
    (directory / CONFIG_FILE).write_text(json.dumps(to_hub(model.config), indent=1) + "\n")
