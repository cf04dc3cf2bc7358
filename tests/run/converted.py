"""Conversions in tests: the names of what they look at, and a checkpoint that began with another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from hub_checkpoint import TRUNK

from genoctx.cli.console import Console
from genoctx.model.hub_names import hub_tensors
from genoctx.model.weights import load_model, save_weights
from genoctx.run.convert import Conversion, Options, convert
from genoctx.run.convert_plan import unchanged

QUIET = Console(verbosity=-1, progress=False)
NORM, HEAD = f"{TRUNK}norm.weight", "lm_head.weight"
DENSE = f"{TRUNK}layers.0.mlp.up_proj.weight"  # float8 in the hub
EXPERT = f"{TRUNK}layers.4.mlp.experts.3.gate_proj.weight"


def run(source: Path, target: Path, form: str, **options: object) -> Conversion:
    delta, merged = options.pop("delta", unchanged), options.pop("merged", frozenset())
    instead = options.pop("instead", unchanged)
    chosen = Options(form=form, **options)  # type: ignore[arg-type]
    return convert(source, target, chosen, monitor=QUIET, delta=delta, instead=instead, merged=merged)  # type: ignore[arg-type]


def trained(hub: Path, folder: Path, names: Iterable[str], dtype: torch.dtype = torch.bfloat16) -> Path:
    """A checkpoint of genoctx that began with ``hub`` and has changed the named tensors."""
    model = load_model(hub, dtype=dtype)
    for name, tensor in hub_tensors(model):
        if name in names:
            tensor += 0.25 * tensor.flip(0)
    folder.mkdir(parents=True)
    save_weights(model, folder)
    return folder
