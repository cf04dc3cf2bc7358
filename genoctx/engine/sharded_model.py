"""A model of many ranks from nothing: its shape, then its parts, then what is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from genoctx.engine.fill import draw_adapters, draw_weights, read_weights, refuse_adapters
from genoctx.engine.mesh import Mesh
from genoctx.engine.sharding import Sharded, refuse_shared_adapters, shard
from genoctx.model.block import LM_ONLY, Objectives
from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid, build


def everything(model: Hybrid) -> None:
    """Trains all that can be trained."""
    del model


def sharded_model(
    config: ModelConfig,
    mesh: Mesh,
    *,
    dtype: torch.dtype,
    device: str | torch.device,
    keep: bool,
    objectives: Objectives = LM_ONLY,
    seed: int | None,
    init: Path | None = None,
    choose: Callable[[Hybrid], object] = everything,
) -> Sharded:
    """A model spread over ``mesh``, as ``shard`` makes it of one that every rank has; none ever has it whole.

    Weights are those of ``init``, or drawn from ``seed``: the same bits as in one process. ``choose`` says
    what is trained, on a model without memory; adapters that it adds are drawn from ``seed``. With neither,
    the parts hold nothing yet: a checkpoint is read next. Collective. Raises InputError or ConfigError, the
    same on every rank.
    """
    model = build(config, dtype=dtype, device="meta", objectives=objectives)
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]

    def prepare() -> None:
        if init is not None:
            refuse_adapters(init)
        choose(model)
        refuse_shared_adapters(model, mesh)

    mesh.together(prepare)
    sharded = shard(model, mesh, keep=keep, device=device)
    if init is not None:
        mesh.together(lambda: read_weights(sharded, init))
    elif seed is not None:
        draw_weights(sharded, shapes, seed)
    if model.lora is not None and seed is not None:
        draw_adapters(sharded, seed)
    return sharded
