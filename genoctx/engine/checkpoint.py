"""A checkpoint directory: hub-layout weights, or the adapters beside those of another directory; optimizer
moments; and the integers of the loop.

What many ranks wrote (genoctx/engine/sharded_checkpoint.py) is read here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from torch import Tensor

from genoctx.engine.moments import OPTIMIZER_FILE, Moments, Rows, every_row
from genoctx.engine.optimizer import Optimizer
from genoctx.engine.tensorfile import write_tensors
from genoctx.errors import GenoctxError, InputError
from genoctx.model.hybrid import Hybrid
from genoctx.model.lora_file import load_adapters, save_adapters
from genoctx.model.weights import load_weights, save_weights

STATE_FILE = "state.json"
_REMEDY = "remove this checkpoint to go on from the one before, or start over with --fresh"


@dataclass(frozen=True)
class LoopState:
    """Where a run stands; all a resume needs beside the tensors."""

    step: int
    bases: int
    """Targets trained on so far."""
    schema: int = 1


class HasState(Protocol):
    """An optimizer, or what was gathered of one."""

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything a resume needs, by ``KIND.NAME``."""


def write_checkpoint(directory: Path, model: Hybrid, optimizer: HasState, state: LoopState) -> None:
    """Fill an existing, empty directory; the caller renames it into place when this returns.

    GenoctxError when the disk is full or refuses.
    """
    try:
        (save_adapters if model.lora else save_weights)(model, directory)
        # in one order: a resumed optimizer has its state in another one, and a run must end with the same bytes
        state_by_name = sorted(optimizer.state(), key=lambda named: named[0])
        write_tensors(directory / OPTIMIZER_FILE, state_by_name, {})
        (directory / STATE_FILE).write_text(json.dumps(asdict(state)) + "\n")
    except (OSError, SafetensorError) as error:
        raise cannot_write(directory, state, str(error)) from error


def cannot_write(directory: Path, state: LoopState, why: str) -> GenoctxError:
    """The error for a disk that refuses a checkpoint."""
    return GenoctxError(
        f"cannot write the checkpoint of step {state.step} into {directory.parent}: {why}",
        "free some space there; older checkpoints are intact, and the same command goes on from the newest",
    )


def read_checkpoint(directory: Path, model: Hybrid, optimizer: Optimizer) -> LoopState:
    """Put weights and moments back; InputError names the file that is missing or broken."""
    with reading(directory):
        (load_adapters if model.lora else load_weights)(model, directory)
        with Moments(directory) as moments:
            optimizer.load_state(moments)
    return read_state(directory)


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Turns whatever a checkpoint has wrong into an InputError that names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"checkpoint {directory} cannot be read: {error.message}", _REMEDY) from error
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise InputError(
            f"checkpoint {directory} cannot be read: {OPTIMIZER_FILE}: {error}", _REMEDY
        ) from error


def read_moments(directory: Path, optimizer: Optimizer, rows: Rows = every_row) -> None:
    """Put the moments of a checkpoint into ``optimizer``, whose model has its weights already.

    ``rows`` as in ``Moments``. Raises InputError where there are none, or they belong to another model.
    """
    try:
        with Moments(directory, rows) as moments:
            optimizer.load_state(moments)
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
