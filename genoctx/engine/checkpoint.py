"""A checkpoint directory: hub-layout weights, or the adapters beside those of another directory; optimizer
moments; and the integers of the loop."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from genoctx.engine.optimizer import Optimizer
from genoctx.errors import GenoctxError, InputError
from genoctx.model.hybrid import Hybrid
from genoctx.model.lora_file import load_adapters, save_adapters
from genoctx.model.weights import load_weights, save_weights

OPTIMIZER_FILE, STATE_FILE = "optimizer.safetensors", "state.json"
_REMEDY = "remove this checkpoint to go on from the one before, or start over with --fresh"


@dataclass(frozen=True)
class LoopState:
    """Where a run stands; all a resume needs beside the tensors."""

    step: int
    bases: int
    """Targets trained on so far."""
    schema: int = 1


def write_checkpoint(directory: Path, model: Hybrid, optimizer: Optimizer, state: LoopState) -> None:
    """Fill an existing, empty directory; the caller renames it into place when this returns.

    GenoctxError when the disk is full or refuses.
    """
    try:
        (save_adapters if model.lora else save_weights)(model, directory)
        save_file({n: t.contiguous().clone() for n, t in optimizer.state()}, directory / OPTIMIZER_FILE)
        (directory / STATE_FILE).write_text(json.dumps(asdict(state)) + "\n")
    except (OSError, SafetensorError) as error:
        raise GenoctxError(
            f"cannot write the checkpoint of step {state.step} into {directory.parent}: {error}",
            "free some space there; older checkpoints are intact, and the same command goes on from the newest",
        ) from error


def read_checkpoint(directory: Path, model: Hybrid, optimizer: Optimizer) -> LoopState:
    """Put weights and moments back; InputError names the file that is missing or broken."""
    try:
        (load_adapters if model.lora else load_weights)(model, directory)
        optimizer.load_state(load_file(directory / OPTIMIZER_FILE))
    except InputError as error:
        raise InputError(f"checkpoint {directory} cannot be read: {error.message}", _REMEDY) from error
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise InputError(
            f"checkpoint {directory} cannot be read: {OPTIMIZER_FILE}: {error}", _REMEDY
        ) from error
    return read_state(directory)


def read_moments(directory: Path, optimizer: Optimizer) -> None:
    """Put the moments of a checkpoint into ``optimizer``, whose model has its weights already.

    Raises InputError where there are none, or they belong to another model.
    """
    try:
        optimizer.load_state(load_file(directory / OPTIMIZER_FILE))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise InputError(
            f"{directory} gives no moments: {OPTIMIZER_FILE}: {error}",
            "only a checkpoint of `genoctx train` has them; set train.init_moments = false for any other",
        ) from error


def read_state(directory: Path) -> LoopState:
    """The integers alone; InputError when they cannot be read."""
    try:
        raw = json.loads((directory / STATE_FILE).read_text())
        return LoopState(step=int(raw["step"]), bases=int(raw["bases"]), schema=int(raw["schema"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"checkpoint {directory} cannot be read: {STATE_FILE}: {error}", _REMEDY) from error
