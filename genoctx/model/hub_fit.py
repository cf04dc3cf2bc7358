"""Does a checkpoint fit a model? Every tensor is compared by name, shape and dtype before one is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torch import Tensor

from genoctx.errors import ConfigError, InputError
from genoctx.model.config import ModelConfig
from genoctx.model.fp8 import Block, scale_grid
from genoctx.model.hub_config import read_hub_config
from genoctx.model.hub_files import WeightFiles
from genoctx.model.hub_header import DTYPES
from genoctx.model.hub_names import SCALE, StoredNames, hub_tensors, layer_of, spans
from genoctx.model.hybrid import Hybrid

SHOWN = 20
"""Problems printed of one checkpoint."""

CONFIG_FILE = "config.json"
_OTHER_MODEL = "take the checkpoint that belongs to this model, or the model that its config.json describes"
_NO_MATTER = {"initializer_range", "first_k_dense_replace", "pad_token_id"}


@dataclass(frozen=True)
class Fit:
    """How a checkpoint and a model go together."""

    copies: dict[str, Tensor]
    """Stored name -> the part of our parameters it fills."""
    hub: dict[str, str]
    """Stored name -> the hub name with our layer's number."""
    names: StoredNames
    problems: list[str]


def slice_config(config: ModelConfig, layers: Sequence[int]) -> ModelConfig:
    """The model of the named layers alone, in the given order."""
    n = config.num_hidden_layers
    if not layers or len(set(layers)) < len(layers) or not set(layers) <= set(range(n)):
        raise ConfigError(
            f"layers {list(layers)} are no subset of the checkpoint's {n}",
            f"name each once, from 0 to {n - 1}",
        )
    return replace(
        config,
        num_hidden_layers=len(layers),
        layer_types=tuple(config.layer_types[i] for i in layers),
        mlp_layer_types=tuple(config.mlp_layer_types[i] for i in layers),
    )


def fit(model: Hybrid, files: WeightFiles, block: Block, layers: Sequence[int] | None = None) -> Fit:
    """Compare all tensors of ``model`` (which may be on meta) with those of a checkpoint.

    With ``layers`` the checkpoint's other layers, and files that hold nothing else, may be there or not.
    """
    names = StoredNames(files.names, layers)
    hub = {names.stored(name): name for name, _ in hub_tensors(model)}
    wanted = {names.stored(name): target for name, target in hub_tensors(model)}
    used = set(wanted) | {scale for name in wanted if (scale := names.scale(name))}
    absent = [name for name in wanted if name not in names.names]
    problems = _missing(absent, wanted)
    for name in files.tensors:
        if name in wanted:
            problems += _mismatch(files, name, wanted[name])
        if name in wanted or names.is_foreign(name):
            problems += _scale_problem(files, names, name, block)
    if layers is None:
        faulty: Iterable[str] = files.faults
        problems += _extra(names, used, model.config.num_hidden_layers)
    else:
        places = {name: stored.file for name, stored in files.tensors.items()} | files.lost
        faulty = {places[name] for name in used if name in places}
    files_first = [text for file in sorted(faulty) for text in files.faults.get(file, ())]
    return Fit(wanted, hub, names, files_first + problems)


def refuse(directory: Path, problems: Sequence[str], *, damaged: bool) -> None:
    """One InputError with all problems, the first of them printed and the rest counted; none: nothing.

    ``damaged`` says whether files are at fault, rather than what they hold.
    """
    if not problems:
        return
    shown = "\n  ".join(["", *problems[:SHOWN]])
    rest = f"\n  and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    remedy = "fetch it again: download or copy what is missing or damaged" if damaged else _OTHER_MODEL
    raise InputError(
        f"{directory} cannot be used, for {len(problems):,} reason{'s' * (len(problems) > 1)}:{shown}{rest}",
        remedy,
    )


def config_problems(config: ModelConfig, directory: Path, layers: Sequence[int] | None = None) -> list[str]:
    """Fields in which a model differs from the ``config.json`` beside the weights it is to take.

    Shapes would show; a clamp, an epsilon or a number of chosen experts would not.
    """
    try:
        stored = read_hub_config(directory / CONFIG_FILE)
        if layers is not None:
            stored = slice_config(stored, layers)
    except ConfigError as error:
        return [error.message]
    differing = [
        (f.name, getattr(config, f.name), getattr(stored, f.name))
        for f in fields(ModelConfig)
        if f.name not in _NO_MATTER and getattr(config, f.name) != getattr(stored, f.name)
    ]
    return [
        f"{name} is {_short(theirs)} in its config.json, {_short(ours)} in the model"
        for name, ours, theirs in differing
    ]


def _short(value: object) -> str:
    return f"a list of {len(value)} kinds" if isinstance(value, tuple) else str(value)


def _missing(absent: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Names the checkpoint lacks; a layer that is not there at all counts as one problem."""
    expected, lacking = (_by_layer(names) for names in (wanted, absent))
    whole = {i for i, names in lacking.items() if i is not None and len(names) == len(expected[i])}
    singles = [f"missing {name}" for name in absent if layer_of(name) not in whole]
    return ([f"missing layers {spans(whole)}: none of their tensors is there"] if whole else []) + singles


def _extra(names: StoredNames, used: set[str], layers: int) -> list[str]:
    """Names that are neither the model's nor of a part it is known to leave out."""
    unused = sorted(name for name in names.names - used if not names.is_foreign(name))
    beyond = {i for name in unused if (i := layer_of(name)) is not None and i >= layers}
    singles = [f"extra {name}" for name in unused if layer_of(name) not in beyond]
    what = f"extra layers {spans(beyond)}: the model has {layers}; `genoctx convert --layers` takes a part"
    return ([what] if beyond else []) + singles


def _by_layer(names: Iterable[str]) -> dict[int | None, list[str]]:
    found: dict[int | None, list[str]] = defaultdict(list)
    for name in names:
        found[layer_of(name)].append(name)
    return found


def _mismatch(files: WeightFiles, name: str, target: Tensor) -> list[str]:
    stored = files.tensors[name]
    if stored.shape != target.shape:
        return [f"{name} is {list(stored.shape)}, the model needs {list(target.shape)}"]
    kind = DTYPES.get(stored.dtype)
    if kind is None or not kind.is_floating_point:
        return [f"{name} is stored as {stored.dtype}, which is no number the model could take"]
    return []


def _scale_problem(files: WeightFiles, names: StoredNames, name: str, block: Block) -> list[str]:
    """What keeps a tensor from being dequantised."""
    stored, scale = files.tensors[name], names.scale(name)
    if scale is None:
        return [f"missing {name}{SCALE}: {name} is float8"] if stored.dtype.startswith("F8") else []
    if scale not in files.tensors:
        return []  # its file is at fault, and said so
    if len(stored.shape) != 2 or files.tensors[scale].shape != (grid := scale_grid(stored.shape, block)):
        shape = list(files.tensors[scale].shape)
        return [f"{scale} is {shape}, blocks of {block[0]} x {block[1]} need {list(grid)}"]
    return []
