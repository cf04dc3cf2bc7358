"""What a training run is: frozen dataclasses, one per section of a TOML file. No torch here.

``load_config`` merges preset < file < ``--set`` (genoctx/config_sources.py), checks every value once
and remembers where each came from. Unknown keys are errors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from genoctx.errors import ConfigError
from genoctx.model.config import ModelConfig
from genoctx.model.hub_config import read_hub_config
from genoctx.presets import list_presets, read_preset
from genoctx.sizes import Size

__all__ = [
    "Config",
    "config_from_dict",
    "differing_keys",
    "list_presets",
    "load_config",
    "load_model_config",
    "preset_model",
    "read_preset",
]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """``[data]``: what is read."""

    store: Path
    """Genome store, written by ``genoctx ingest``."""
    windows: Path
    """Window table, written by ``genoctx windows``."""


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """``[stream]``: how a window passes through the model. Changes memory and speed, not the mathematics."""

    chunk: Annotated[int, Size(), Ge(1)] = 4096
    """Tokens per chunk (``4096`` or ``"4k"``); activation memory grows with it, never with the window."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of weights and activations; states, losses and gradient sums are float32 at least."""
    threads: Annotated[int, Ge(0)] = 0
    """CPU threads; 0 takes all."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; ``auto`` takes a GPU where torch sees one."""
    fit: Literal["check", "auto", "off"] = "check"
    """Before step 0: refuse what would not fit (``check``), or choose chunk and homes that do (``auto``)."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """``[loss]``: what is added to the nats per base."""

    balance: Annotated[float, Ge(0)] = 0.0
    """Coefficient of the expert balance loss over a micro-batch of whole windows; 0.0 is off."""
    softmask: Annotated[float, Ge(0), Le(1)] = 1.0
    """What a base of lower case counts in training (Evo 2: 0.1); evaluation counts every base once."""
    indexer_kl: Annotated[float, Ge(0)] = 0.0
    """Coefficient of the indexer's KL to the attention it selects for; 0.0 freezes the indexer."""
    indexer_kl_mode: Literal["sparse", "dense"] = "sparse"
    """Compare over the selected pools (``sparse``) or over the whole prefix (``dense``)."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """``[optim]``: AdamW with linear warm-up and cosine decay."""

    lr: Annotated[float, Gt(0)] = 3e-4
    """Peak learning rate."""
    min_lr_ratio: Annotated[float, Ge(0), Le(1)] = 0.1
    """The decay ends at ``lr`` times this."""
    betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.95)
    """Decay of the two moment averages."""
    eps: Annotated[float, Gt(0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """Decoupled decay of matrices; norms, biases and gates never decay."""
    warmup_steps: Annotated[int, Ge(0)] = 10
    """Steps over which the rate rises linearly to ``lr``."""
    clip_norm: Annotated[float, Ge(0)] = 1.0
    """Largest gradient norm; 0.0 does not clip."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """``[train]``: how much is trained, from where, on what order of windows."""

    steps: Annotated[int, Ge(0)] = 100
    """Optimizer steps of the whole run."""
    windows_per_step: Annotated[int, Ge(1)] = 1
    """Windows whose gradients are added up before a step."""
    batch: Annotated[int, Ge(1)] = 1
    """Windows swept side by side; at most ``windows_per_step``."""
    seed: Annotated[int, Ge(0)] = 0
    """Of fresh weights and of the order of windows."""
    context: Annotated[int, Size(), Ge(0)] = 0
    """Cut training windows into pieces of this many bases (``"4k"``); 0 takes whole windows."""
    init: Path | None = None
    """Checkpoint directory to start from; absent: fresh weights."""
    init_moments: bool = False
    """Take AdamW's moments from ``init`` as well, to go on rather than begin anew; genoctx wrote it then."""
    rc: bool = False
    """Reverse-complement half of the windows, chosen by seed."""
    trainable: tuple[str, ...] = ()
    """Train these weights alone, or with ``[lora]`` beside the adapters: names or globs; empty: all, or none."""
    freeze: tuple[str, ...] = ()
    """Leave these out of what is trained: names or globs of parameters."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """``[lora]``: adapters of low rank beside the frozen weights of ``train.init``."""

    rank: Annotated[int, Ge(0)] = 0
    """Rank of every adapter; 0: no adapters."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """What an adapter adds is multiplied by ``alpha / rank``."""
    targets: tuple[str, ...] = ("self_attn", "mlp.*_proj", "shared_experts")
    """Linears with an adapter: names or globs of neighbouring parts of a name, for example ``experts``."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """``[checkpoint]``: how often the run is saved; it is always saved at the end and on SIGTERM."""

    every_steps: Annotated[int, Ge(0)] = 50
    """Steps between checkpoints; 0 saves by time alone."""
    every_minutes: Annotated[float, Ge(0)] = 15.0
    """Minutes between checkpoints; 0 saves by steps alone."""
    window_minutes: Annotated[float, Ge(0)] = 10.0
    """Minutes between entries of an unfinished window; 0 makes one only when the run is stopped."""
    keep: Annotated[int, Ge(1)] = 2
    """Newest checkpoints kept."""


Where = Literal["device", "host", "file"]


@dataclass(frozen=True, kw_only=True)
class HomesConfig:
    """``[homes]``: where what lives long lies: the device, host memory, or mapped files. Never changes a bit."""

    carries: Where = "device"
    """What enters every chunk of a window."""
    latents: Where = "device"
    """Latents and pooled index keys of a window."""
    d_latents: Where = "device"
    """Their gradients."""
    ids: Where = "device"
    """Pools and experts that were chosen."""
    parameters: Where = "device"
    """Masters of the weights, and gradient sums."""
    moments: Where = "device"
    """AdamW's two averages."""
    folder: Path | None = None
    """Folder of mapped files; default: the run's directory."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """``[parallel]``: how the ranks of a run share the work; one rank ignores it. Results differ by rounding alone."""

    dp: Annotated[int, Ge(0)] = 0
    """Windows in work at a time, each on ``cp`` ranks; 0: as many as the ranks allow."""
    cp: Annotated[int, Ge(1)] = 1
    """Ranks that share every chunk of a window."""
    ep: Annotated[int, Ge(1)] = 1
    """Ranks that share the experts of a layer."""
    keep: bool = False
    """Gather weights once a sweep, rather than layer by layer for every chunk."""
    hang_seconds: Annotated[float, Ge(0)] = 600.0
    """End the job, naming the rank, when one stands still for so long; 0 waits for ever."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """``[eval]``: when the held-out windows are scored during a run."""

    split: str = "holdout"
    """The split whose windows are scored."""
    limit: Annotated[int, Ge(0)] = 0
    """Score at most this many windows; 0 scores all."""
    at_start: bool = True
    """Score before the first step, so that a report can compare before and after."""
    at_end: bool = True
    """Score after the last step."""
    every_steps: Annotated[int, Ge(0)] = 0
    """Score every so many steps as well; 0 never."""


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "stream": StreamConfig,
    "loss": LossConfig,
    "optim": OptimConfig,
    "train": TrainConfig,
    "lora": LoraConfig,
    "homes": HomesConfig,
    "parallel": ParallelConfig,
    "checkpoint": CheckpointConfig,
    "eval": EvalConfig,
}

# What may change between two halves of one run: places, cadence, and how a sum is cut into parts.
_FREE_KEYS = {"train.init", "stream.chunk", "stream.threads", "stream.device", "stream.fit"}
_FREE_SECTIONS = {"data", "homes", "parallel", "checkpoint", "eval"}
# Keys that came later: a run from before them goes on as long as they say nothing.
_EMPTY_KEYS = {"train.trainable", "train.freeze"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, completely: every key has a value."""

    data: DataConfig
    model: ModelConfig
    stream: StreamConfig = field(default_factory=StreamConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    homes: HomesConfig = field(default_factory=HomesConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where values that are no defaults came from: ``run.toml:12``, ``preset nano``, ``--set``."""

    def __post_init__(self) -> None:
        if self.train.batch > self.train.windows_per_step:
            raise ConfigError(
                f"train.batch {self.train.batch} exceeds the {self.train.windows_per_step} windows of a step",
                "lower train.batch or raise train.windows_per_step",
            )
        if self.train.init_moments and self.train.init is None:
            raise ConfigError(
                "train.init_moments needs a checkpoint to take them from", "set train.init as well"
            )
        if self.lora.rank and self.train.init_moments:
            raise ConfigError(
                "train.init_moments does not go with lora.rank > 0: the moments are those of other parameters",
                "leave one of the two out",
            )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain values, as written to ``config.resolved.json``."""
        return {name: _section_dict(getattr(self, name)) for name in SECTIONS}

    @property
    def digest(self) -> str:
        """16 hex digits of everything that determines the training result.

        Not in it: paths, cadence of checkpoints and evaluation, threads, the device, the layout of ranks, and
        ``stream.chunk``, which cuts the same sums at other places. ``train.batch`` is in it: the balance loss
        is per batch.
        """
        text = json.dumps(training_keys(self.to_dict()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def explain(self) -> list[tuple[str, Any, str]]:
        """``(key, value, where it came from)`` for every key, in the order of the sections."""
        return [(k, v, self.origins.get(k, "default")) for k, v in flatten(self.to_dict()).items()]


def load_config(path: Path | None, preset: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Merge preset < file < overrides (``K=V``) into a checked ``Config``.

    Where none of them shapes the model, ``train.init`` does, by the ``config.json`` of the checkpoint.
    ``preset`` beats the file's own ``preset = "name"`` line. Relative paths count from the file's
    folder, in overrides from the working directory. Raises ConfigError for anything unusable.
    """
    from genoctx import config_sources as sources

    return _build(_merged(path, preset) | dict(sources.parse_override(text) for text in overrides))


def load_plan_config(path: Path | None, preset: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """``load_config`` of something that may name no data yet; its store and table are then ``.``."""
    from genoctx import config_sources as sources

    nowhere = {f"data.{f.name}": sources.Value(".", "not given", Path()) for f in fields(DataConfig)}
    given = nowhere | _merged(path, preset) | dict(sources.parse_override(text) for text in overrides)
    return _build(given)


def load_model_config(path: Path | None, preset: str | None = None) -> ModelConfig:
    """The shape alone that a preset and a file describe; what else a run needs may be missing."""
    from genoctx import config_sources as sources

    shape = {key: value for key, value in _merged(path, preset).items() if key.startswith("model.")}
    return ModelConfig(**sources.check(shape, _known(), {"model": ModelConfig})["model"])


def preset_model(name: str) -> ModelConfig:
    """The shape a preset describes; the rest of it needs data to be a run."""
    return load_model_config(None, name)


def config_from_dict(raw: Mapping[str, Any], origin: str = "config.resolved.json") -> Config:
    """The inverse of ``Config.to_dict``, for the resolved config stored with a run."""
    from genoctx import config_sources as sources

    return _build({k: sources.Value(v, origin, Path()) for k, v in flatten(raw).items()})


def flatten(sections: Mapping[str, Any]) -> dict[str, Any]:
    """``{"optim": {"lr": 1}}`` as ``{"optim.lr": 1}``."""
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def training_keys(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The flat keys of a resolved config that determine the training result."""
    flat = flatten(sections)
    kept = {k: v for k, v in flat.items() if k not in _FREE_KEYS and k.split(".")[0] not in _FREE_SECTIONS}
    if not kept.get("lora.rank"):
        kept = {k: v for k, v in kept.items() if not k.startswith("lora.")}
    return {k: v for k, v in kept.items() if v != [] or k not in _EMPTY_KEYS}


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """``train.seed 0 -> 1`` for every training key in which two resolved configs differ."""
    a, b = training_keys(old), training_keys(new)
    keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    return [f"{k} {json.dumps(a.get(k))} -> {json.dumps(b.get(k))}" for k in keys]


def _section_dict(section: Any) -> dict[str, Any]:
    if isinstance(section, ModelConfig):
        return section.to_dict()
    return {f.name: _json_value(getattr(section, f.name)) for f in fields(section)}


def _json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _known() -> dict[str, Any]:
    """Every ``section.key`` with the type of its field."""
    hints = {name: get_type_hints(kind, include_extras=True) for name, kind in SECTIONS.items()}
    return {f"{name}.{f.name}": hints[name][f.name] for name, kind in SECTIONS.items() for f in fields(kind)}


def _merged(path: Path | None, preset: str | None) -> dict[str, Any]:
    """Values of preset < file, by flat key."""
    from genoctx import config_sources as sources

    in_file = sources.read_file(path, _known()) if path is not None else {}
    named = in_file.pop("preset", None)
    base = preset or (str(named.value) if named is not None else None)
    return (sources.read_preset_values(base, _known()) if base is not None else {}) | in_file


def _build(values: Mapping[str, Any]) -> Config:
    from genoctx import config_sources as sources

    checked = sources.check(values, _known(), SECTIONS)
    origins = {key: value.origin for key, value in values.items()}
    sections = {name: kind(**checked.get(name, {})) for name, kind in SECTIONS.items()}
    init = sections["train"].init
    if init is not None and not any(key.startswith("model.") for key in values):
        source = init / "config.json"
        sections["model"] = read_hub_config(source)
        origins |= {f"model.{f.name}": str(source) for f in fields(ModelConfig)}
    return Config(**sections, origins=origins)
