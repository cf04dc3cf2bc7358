"""Adapters on disk, as PEFT keeps them: ``adapter_model.safetensors`` and ``adapter_config.json``.

Tensors are named ``base_model.model.HUB MODULE.lora_A.weight`` (and ``lora_B``), each expert by its own hub
name; weights that are trained as a whole lie beside them as ``base_model.model.HUB NAME``. The adapters say
what they are added to: the base's directory in the config, its fingerprint in ``base.json``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from genoctx.errors import InputError
from genoctx.model.adapter import ADAPTER_PARTS, Lora, LowRank
from genoctx.model.block import LM_ONLY, Objectives
from genoctx.model.hub_config import to_hub
from genoctx.model.hub_fit import CONFIG_FILE, refuse
from genoctx.model.hub_names import PREFIX, hub_name, hub_parts, hub_tensors
from genoctx.model.hybrid import Hybrid
from genoctx.model.lora import adapters, add_adapters, merge
from genoctx.model.shard_files import SHARDS
from genoctx.model.weights import load_model, load_weights

TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BASE = "base.json"
_OUTER = "base_model.model."
_PARTS = (".lora_A.weight", ".lora_B.weight")
_WHOLE = "take the whole directory of the adapters"
_OPTIMIZER = "optimizer.safetensors"
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.(\w+)")
_PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "fan_in_fan_out": False,
}


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds adapters rather than weights."""
    return (directory / CONFIG).is_file()


def fingerprint(directory: Path) -> str:
    """16 hex digits of a directory of weights: names and sizes of its files, and 64 KiB at 16 places of each."""
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), *(directory / SHARDS).glob("*.distcp")]):
        if path.name == _OPTIMIZER:
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for i in range(16):
                file.seek(size * i // 16)
                digest.update(file.read(1 << 16))
    return digest.hexdigest()[:16]


def save_adapters(model: Hybrid, directory: Path) -> None:
    """Write everything ``model`` trains, and the shape of the whole, into an existing directory; not atomic.

    Raises OSError or SafetensorError as the disk does.
    """
    assert model.lora is not None
    tensors = {key: t.detach().cpu().clone() for key, t in _named(model)}
    save_file(tensors, directory / TENSORS, {"format": "pt"})  # metadata of two keys has no fixed order
    (directory / BASE).write_text(json.dumps({"schema": 1, "digest": model.lora.base_digest}) + "\n")
    (directory / CONFIG).write_text(json.dumps(_peft_config(model, model.lora, tensors), indent=2) + "\n")
    (directory / CONFIG_FILE).write_text(json.dumps(to_hub(model.config), indent=1) + "\n")


def load_adapters(model: Hybrid, directory: Path) -> None:
    """Fill the adapters of ``model``, and the weights that are trained as a whole, from a directory.

    One InputError lists all that is missing, extra or of another shape, or says that the base is another.
    """
    assert model.lora is not None
    file = AdapterFile(directory)
    if file.base_digest and model.lora.base_digest not in ("", file.base_digest):
        raise InputError(
            f"the adapters in {directory} belong to other weights than {model.lora.base} now holds",
            "put the weights they were trained on back there",
        )
    wanted = dict(_named(model))
    whole = {_OUTER + name: t for name, t in hub_tensors(model)}
    wanted |= {key: whole[key] for key in file.tensors if key in whole}
    problems = [f"missing {key}" for key in wanted if key not in file.tensors]
    problems += [f"extra {key}" for key in file.tensors if key not in wanted]
    for key in wanted.keys() & file.tensors.keys():
        if wanted[key].shape != file.tensors[key].shape:
            found, needed = list(file.tensors[key].shape), list(wanted[key].shape)
            problems.append(f"{key} is {found}, the model needs {needed}")
    refuse(directory, sorted(problems), damaged=False)
    with torch.no_grad():
        for key, target in wanted.items():
            target.copy_(file.tensors[key])


def load_adapted(
    directory: Path,
    *,
    dtype: torch.dtype,
    objectives: Objectives = LM_ONLY,
    device: str | torch.device = "cpu",
) -> Hybrid:
    """The base of a directory of adapters with these beside it."""
    file = with_base(directory)
    model = load_model(file.base, dtype=dtype, objectives=objectives, device=device)
    if model.lora:
        merge(model)
    add_adapters(model, file.lora, seed=0)
    load_adapters(model, directory)
    return model


def load_merged(model: Hybrid, directory: Path) -> None:
    """Fill a model without adapters with the base of a directory of adapters, and add these to the weights."""
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    file = with_base(directory)
    load_weights(model, file.base)
    add_adapters(model, file.lora, seed=0)
    load_adapters(model, directory)
    merge(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])


def with_base(directory: Path) -> AdapterFile:
    """The adapters of a directory, whose base is there. InputError where it is not."""
    file = AdapterFile(directory)
    if not (file.base / CONFIG_FILE).is_file():
        raise InputError(
            f"the adapters in {directory} stand beside weights in {file.base}, where there are none",
            f"put these back, or write their new place as base_model_name_or_path into {directory / CONFIG}",
        )
    return file


class AdapterFile:
    """The adapters of a directory by hub name, for merging. InputError where they cannot be understood."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        raw = _read_config(directory)
        self.rank, self.alpha = int(raw["r"]), float(raw["lora_alpha"])
        self.base = Path(str(raw.get("base_model_name_or_path") or ""))
        self.tensors = _read_tensors(directory / TENSORS)
        self.base_digest = _read_digest(directory / BASE)

    @property
    def lora(self) -> Lora:
        """What ``add_adapters`` makes a model of the base ready for these with."""
        modules = {key.removesuffix(_PARTS[0]) for key in self.tensors if key.endswith(_PARTS[0])}
        names = {_own_name(module.removeprefix(_OUTER)) for module in modules}
        digest = fingerprint(self.base)
        return Lora(self.rank, self.alpha, tuple(sorted(names)), self.base, digest)

    def delta(self, name: str) -> Tensor | None:
        """What is added to the weight of the hub name ``name``: (alpha / r) B A; None where nothing is.

        In the dtype of the adapters (float32, or float64 of a float64 run), [outputs, inputs].
        """
        stem = _OUTER + name.removesuffix(".weight")
        a, b = (self.tensors.get(stem + part) for part in _PARTS)
        return None if a is None or b is None else self.alpha / self.rank * (b @ a)

    def replacement(self, name: str) -> Tensor | None:
        """The tensor that takes the place of the base's of the hub name ``name``; None where none does."""
        return self.tensors.get(_OUTER + name)

    def names(self) -> set[str]:
        """Hub names of all weights that change."""
        found = set()
        for key in self.tensors:
            adapted = key.endswith(_PARTS)
            name = key.removeprefix(_OUTER)
            found.add(name.rsplit(".", 2)[0] + ".weight" if adapted else name)
        return found


def _own_name(module: str) -> str:
    """Our name of a hub module: without the prefix, and without the number of an expert."""
    name = module.removeprefix(PREFIX)
    match = _EXPERT.fullmatch(name)
    return f"{match[1]}.{match[2]}" if match else name


def _named(model: Hybrid) -> Iterator[tuple[str, Tensor]]:
    """Every trained tensor by its key in the file, as views of the parameters."""
    for name, adapter in adapters(model):
        for module, (a, b) in _modules(name, adapter):
            yield f"{_OUTER}{module}{_PARTS[0]}", a
            yield f"{_OUTER}{module}{_PARTS[1]}", b
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not name.endswith(ADAPTER_PARTS):
            for part, view in hub_parts(name, parameter.detach()):
                yield _OUTER + part, view


def _modules(name: str, adapter: LowRank) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Hub modules of one adapter, each with its A [R, I] and B [O, R]."""
    a, b = adapter.lora_A.detach(), adapter.lora_B.detach()
    if a.ndim == 2:
        yield hub_name(f"{name}.weight").removesuffix(".weight"), (a, b)
        return
    stem, _, projection = name.rpartition(".")
    for e, pair in enumerate(zip(a, b, strict=True)):
        yield hub_name(f"{stem}.{e}.{projection}"), pair


def _peft_config(model: Hybrid, lora: Lora, tensors: dict[str, Tensor]) -> dict[str, Any]:
    modules = sorted(k.removesuffix(_PARTS[0]).removeprefix(_OUTER) for k in tensors if k.endswith(_PARTS[0]))
    whole = sorted(k.rpartition(".")[0].removeprefix(_OUTER) for k in tensors if not k.endswith(_PARTS))
    return {
        **_PLAIN,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(lora.base) if lora.base else None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "inference_mode": True,
        "target_modules": modules,
        "modules_to_save": whole or None,
    }


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    try:
        raw = json.loads(path.read_text())
        int(raw["r"]), float(raw["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error!r}", _WHOLE) from error
    unknown = [f"{k} = {raw[k]!r}" for k, v in _PLAIN.items() if raw.get(k, v) not in (v, None)]
    unknown += [f"{k} = {raw[k]!r}" for k in ("rank_pattern", "alpha_pattern") if raw.get(k)]
    if unknown:
        raise InputError(
            f"{path}: {', '.join(unknown)} is not supported", "adapters of one rank, plain LoRA, are"
        )
    return dict(raw)


def _read_digest(path: Path) -> str:
    """The fingerprint of the base; empty where the adapters come from elsewhere and do not tell it."""
    try:
        return str(json.loads(path.read_text())["digest"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error!r}", _WHOLE) from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}", _WHOLE) from error
