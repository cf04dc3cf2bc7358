"""Weights for the parts of a model: drawn or read one tensor at a time, so that no rank ever has them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from genoctx.engine.sharding import Part, Sharded
from genoctx.errors import UsageError
from genoctx.model.adapter import LowRank
from genoctx.model.fp8 import Block
from genoctx.model.hub_config import float8_block, read_hub_json
from genoctx.model.hub_files import WeightFiles
from genoctx.model.hub_fit import CONFIG_FILE, config_problems, fit, refuse
from genoctx.model.hub_names import StoredNames, hub_parts
from genoctx.model.hybrid import build, drawn
from genoctx.model.lora_file import is_adapter
from genoctx.model.shard_files import open_files
from genoctx.model.weights import read_into


@torch.no_grad()
def draw_weights(sharded: Sharded, shapes: Iterable[tuple[str, Sequence[int]]], seed: int) -> None:
    """Fresh weights, to the bit those that one process draws for ``seed``; ``shapes`` as in ``drawn``."""
    for name, whole in drawn(sharded.model.config, shapes, seed):
        sharded.part(name).put(whole)
        del whole  # before the next one is drawn


@torch.no_grad()
def draw_adapters(sharded: Sharded, seed: int) -> None:
    """Fresh adapters, as ``add_adapters`` draws them; B is zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, module in sharded.model.named_modules():
        if isinstance(module, LowRank):
            sharded.part(f"{name}.lora_A").put(module.drawn(generator))
            sharded.part(f"{name}.lora_B").local.zero_()


def refuse_adapters(directory: Path) -> None:
    """UsageError for a directory of adapters, which are merged by one process."""
    if is_adapter(directory):
        raise UsageError(
            f"{directory} holds adapters, which many ranks cannot merge",
            f"merge them first: genoctx convert {directory} DST --to genoctx, then train.init = DST",
        )


@torch.no_grad()
def read_weights(sharded: Sharded, directory: Path) -> None:
    """Weights of a hub-layout or sharded directory; every rank reads, and keeps its parts.

    Of experts only this rank's are read. All problems are listed in one InputError beforehand, the same on
    every rank.
    """
    model = sharded.model
    refuse_adapters(directory)
    whole = build(model.config, dtype=sharded.dtype, device="meta")
    with open_files(directory) as files:
        block = float8_block(read_hub_json(directory / CONFIG_FILE))
        found = fit(whole, files, block)
        problems = config_problems(model.config, directory) + found.problems
        refuse(directory, problems, damaged=bool(files.faults))
        for name, _ in whole.named_parameters():
            part = sharded.part(name)
            experts = part.first if ".mlp.experts." in name else 0
            for hub, target in hub_parts(name, part.local, experts):
                _read_part(target, part, files, found.names, found.names.stored(hub), block)


def _read_part(
    target: Tensor, part: Part, files: WeightFiles, names: StoredNames, name: str, block: Block
) -> None:
    """This rank's rows of one stored tensor, or all of an expert's; quantised, it is read whole."""
    if target.ndim < len(part.shape):
        value = torch.empty(target.shape, dtype=part.working)
        read_into(value, files, names, name, block)
        target.copy_(value)
    elif names.scale(name):
        value = torch.empty(part.shape, dtype=part.working)
        read_into(value, files, names, name, block)
        part.put(value)
    else:
        target.copy_(files.rows(name, part.first, part.last).to(part.working))
