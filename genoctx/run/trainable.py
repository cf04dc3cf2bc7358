"""What a run trains: adapters and choices by name from its config, and the check that step 1 moves it."""

from __future__ import annotations

from genoctx.config import Config
from genoctx.engine.movement import Movement
from genoctx.errors import ConfigError
from genoctx.model.adapter import Lora
from genoctx.model.block import Objectives
from genoctx.model.hybrid import Hybrid
from genoctx.model.lora import add_adapters, choose_trainable
from genoctx.model.lora_file import fingerprint
from genoctx.model.select import matches
from genoctx.run.monitor import Monitor


def objectives_of(config: Config) -> Objectives:
    """What the layers must provide sums for."""
    kl_mode = config.loss.indexer_kl_mode if config.loss.indexer_kl > 0 else "off"
    return Objectives(balance=config.loss.balance > 0, kl_mode=kl_mode)


def refuse_without_base(config: Config) -> None:
    """ConfigError for adapters beside weights that nothing says where to take from."""
    if config.lora.rank and config.train.init is None:
        raise ConfigError(
            "lora.rank > 0 trains adapters beside weights that are there already",
            "set train.init to a checkpoint, or lora.rank = 0 to train fresh weights",
        )


def choose_what_is_trained(model: Hybrid, config: Config) -> None:
    """Put adapters beside the loaded weights, if any, and freeze the rest; ConfigError where nothing is left."""
    lora, init = config.lora, config.train.init
    if lora.rank:
        assert init is not None
        made = Lora(lora.rank, lora.alpha, lora.targets, init, fingerprint(init))
        add_adapters(model, made, config.train.seed)
    choose_trainable(model, config.train.trainable, config.train.freeze)


def describe_trained(model: Hybrid) -> str:
    """``12,288 of 1,050,000 parameters are trained``; empty where all are that can be."""
    fixed = [p.numel() for name, p in model.named_parameters() if name.endswith("e_score_correction_bias")]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    if not model.lora and trained == total - sum(fixed):
        return ""
    rank = f", adapters of rank {model.lora.rank}" if model.lora else ""
    return f"{trained:,} of {total:,} parameters are trained ({100 * trained / total:.3g} %){rank}"


def check_movement(movement: Movement, model: Hybrid, config: Config, monitor: Monitor) -> None:
    """GenoctxError if the step that was watched moves too little of what is trained; a warning for a little."""
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    movement.refuse(
        {pattern: [n for n in trained if matches(n, pattern)] for pattern in config.train.trainable}
    )
    if text := movement.describe():
        monitor.warn(text)
