"""Checkpoints from one form into the other: hub directory, genoctx's own, an adapter merged in.

The result is written tensor by tensor into a folder beside its place and renamed when it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import genoctx
from genoctx.engine.checkpoint import STATE_FILE
from genoctx.errors import CheckFailed, UsageError, WouldNotFit
from genoctx.files import sync_tree
from genoctx.genome.staging import Kind, stage
from genoctx.model.hub_config import to_hub
from genoctx.model.hub_files import WeightFiles
from genoctx.model.hub_fit import CONFIG_FILE, config_problems, refuse
from genoctx.model.hub_header import INDEX_FILE, SINGLE_FILE
from genoctx.model.hub_names import layer_of
from genoctx.model.hub_write import SHARD_BYTES, Entry, write_shards
from genoctx.run.convert_plan import Checkpoint, Delta, Plan, hub_json, unchanged
from genoctx.run.convert_sources import CONVERSION_FILE, base_of
from genoctx.run.monitor import Monitor

_NOT_COMPANIONS = {CONFIG_FILE, INDEX_FILE, CONVERSION_FILE, STATE_FILE, "COMPLETE"}
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a conversion is to do."""

    form: Literal["hf", "genoctx"]
    base: Path | None = None
    """Checkpoint whose other tensors, dtypes and config an ``hf`` result keeps; None: see ``base_of``."""
    dtype: torch.dtype | None = None
    layers: tuple[int, ...] | None = None
    """Layers of the source that a ``genoctx`` result holds, renumbered from 0; None takes all."""
    shard_bytes: int = SHARD_BYTES
    verify: bool = False
    force: bool = False


@dataclass(frozen=True)
class Conversion:
    """What came out."""

    tensors: int
    size: int
    """Bytes of all tensors."""
    files: tuple[str, ...]
    became: dict[str, int]
    """How many tensors were copied byte for byte, cast, dequantised, changed."""
    source: Path
    base: Path
    verified: bool


def convert(
    source: Path,
    target: Path,
    options: Options,
    *,
    monitor: Monitor,
    delta: Delta = unchanged,
    instead: Delta = unchanged,
    merged: frozenset[str] = frozenset(),
) -> Conversion:
    """Write the checkpoint ``source`` to ``target`` in another form.

    ``delta`` is added to the tensors it names while they pass, ``instead`` takes the place of others; ``merged``
    lists the names of both. Holds the largest tensor three times at most. Raises InputError with all that does
    not fit, UsageError where the place is taken, WouldNotFit without room, CheckFailed where ``verify`` finds
    other bits than were meant.
    """
    if options.form == "hf" and options.layers is not None:
        raise UsageError("some layers alone are no hub checkpoint", "take them with --to genoctx")
    base = source if options.form == "genoctx" else options.base or base_of(source)
    _refuse_overlap(target, (source, base))
    place = target.absolute()
    with ExitStack() as stack:
        plan = _opened(source, base, options, delta, instead, merged, stack)
        entries = plan.hf() if options.form == "hf" else plan.genoctx()
        size = sum(entry.size for entry in entries)
        staging = stack.enter_context(stage(place, target, options.force, CHECKPOINT))
        _refuse_unfit(staging.folder, size)
        with monitor.progress(f"convert to {options.form}", size * (1 + options.verify), "bytes") as bar:
            files = write_shards(
                staging.folder, entries, shard_bytes=options.shard_bytes, on_bytes=bar.advance
            )
            _write_rest(staging.folder, plan, options)
            became = Counter(plan.became.values())
            if options.verify:
                _verify(staging.folder, entries, plan, bar.advance)
        sync_tree(staging.folder)
        staging.publish()
    return Conversion(len(entries), size, tuple(files), dict(became), source, base, options.verify)


def _is_checkpoint(folder: Path) -> bool:
    """A converted or hub checkpoint; one of a run belongs to the run."""
    weights = (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()
    return weights and (folder / CONFIG_FILE).is_file() and not (folder / "COMPLETE").exists()


CHECKPOINT = Kind("a checkpoint outside of a run", _is_checkpoint)


def _opened(
    source: Path,
    base: Path,
    options: Options,
    delta: Delta,
    instead: Delta,
    merged: frozenset[str],
    stack: ExitStack,
) -> Plan:
    """Both checkpoints, checked against each other and the adapter; one InputError lists all problems."""
    here = Checkpoint.open(source, stack, options.layers)
    there = here if base.resolve() == source.resolve() else Checkpoint.open(base, stack)
    problems = list(here.fit.problems)
    if there is not here:
        problems += [f"base: {text}" for text in there.fit.problems]
        problems += [f"base {base}: {text}" for text in config_problems(here.config, base)]
    known = {here.fit.names.hub(name) for name in here.fit.hub}
    left_out = {name for name in merged if options.layers and layer_of(name) not in {None, *options.layers}}
    lacking = sorted(merged - known - left_out)
    problems += [f"the adapter changes {name}, which is not there" for name in lacking]
    refuse(source, problems, damaged=bool(here.files.faults or there.files.faults))
    return Plan(here, there, options.dtype, delta, instead)


def _write_rest(folder: Path, plan: Plan, options: Options) -> None:
    """Config and companions (tokenizer, templates, licence)."""
    base = plan.base.directory
    if options.form == "genoctx":
        text = json.dumps(to_hub(plan.source.config), indent=1) + "\n"
        note = {
            "schema": 1,
            "genoctx": genoctx.__version__,
            "source": str(plan.source.directory.resolve()),
            "layers": list(options.layers) if options.layers is not None else None,
            "dtype": str(options.dtype).removeprefix("torch.") if options.dtype else None,
        }
        (folder / CONVERSION_FILE).write_text(json.dumps(note, indent=1) + "\n")
    elif plan.dtype is None:
        text = (base / CONFIG_FILE).read_text()
    else:
        text = json.dumps(hub_json(plan), indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG_FILE).write_text(text)
    for path in sorted(base.iterdir()):
        if path.is_file() and path.name not in _NOT_COMPANIONS and path.suffix not in _WEIGHTS:
            shutil.copyfile(path, folder / path.name)


def _verify(folder: Path, entries: list[Entry], plan: Plan, on_bytes: Callable[[int], None]) -> None:
    """Read the result back: every bit is what a second pass over the source says it must be."""
    with ExitStack() as stack:
        result = Checkpoint.open(folder, stack)
        problems = list(result.fit.problems)
        if result.config != plan.source.config:
            problems.append("its config describes another model")
        problems += [f"extra {name}" for name in sorted(result.files.names - {e.name for e in entries})]
        for entry in entries:
            if not _same(entry, result.files, on_bytes):
                problems.append(f"{entry.name} has other bits")
    if problems:
        shown = "\n  ".join(problems[:20])
        raise CheckFailed(
            f"the written checkpoint differs in {len(problems):,} place(s):\n  {shown}",
            "nothing was put in place; check the disk, then convert again",
        )


def _same(entry: Entry, files: WeightFiles, on_bytes: Callable[[int], None]) -> bool:
    stored = files.tensors.get(entry.name)
    if stored is None or (stored.dtype, stored.shape, stored.size) != (entry.dtype, entry.shape, entry.size):
        return False
    at = 0
    for piece in entry.pieces():
        meant, begin = np.frombuffer(piece, np.uint8), at
        for part in files.pieces(entry.name, begin, begin + len(meant)):
            if not np.array_equal(meant[at - begin : at - begin + len(part)], np.frombuffer(part, np.uint8)):
                return False
            at += len(part)
        on_bytes(len(meant))
    return at == entry.size


def _refuse_overlap(target: Path, sources: tuple[Path, ...]) -> None:
    place = target.resolve()
    for source in sources:
        if (
            place == source.resolve()
            or place in source.resolve().parents
            or source.resolve() in place.parents
        ):
            raise UsageError(
                f"{target} and {source} overlap", "choose another DST; the source stays as it is"
            )


def _refuse_unfit(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise WouldNotFit(
            f"the result takes {size / 1e9:.1f} GB, {folder.parent} has {free / 1e9:.1f} GB free",
            "choose a place on another disk, or --dtype bfloat16 or a part of the layers",
        )
