"""``train --dry-run``: everything that can be wrong before the first step, without a weight in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from genoctx.config import Config
from genoctx.genome.tokenizer import verify_tokenizer
from genoctx.model.hub_config import float8_block, read_hub_json
from genoctx.model.hub_fit import CONFIG_FILE, config_problems, fit, refuse
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora_file import AdapterFile, is_adapter
from genoctx.model.shard_files import open_files
from genoctx.run.data import open_data, training_pieces, windows_of
from genoctx.run.device import choose_device
from genoctx.run.evaluate import describe
from genoctx.run.rundir import RESOLVED, check_same, checkpoint_step, latest_checkpoint, refuse_foreign
from genoctx.run.trainable import choose_what_is_trained, objectives_of, refuse_without_base


def rehearse(config: Config, out: Path, *, fresh: bool = False) -> dict[str, Any]:
    """What ``train`` would do, by name; raises what it would raise before its first step.

    Opens store and table, compares the headers of the weights with the model, chooses what is trained, and
    looks at the run that is there. Writes nothing.
    """
    refuse_without_base(config)
    refuse_foreign(out)
    data = open_data(config.data.store, config.data.windows, config.model)
    pieces, empty = training_pieces(data, config.train.context, config.loss.softmask)
    evaluated = config.eval.at_start or config.eval.at_end or config.eval.every_steps
    held_out = windows_of(data, config.eval.split, config.eval.limit) if evaluated else ()
    model = build(
        config.model,
        dtype=getattr(torch, config.stream.dtype),
        device="meta",
        objectives=objectives_of(config),
    )
    if init := config.train.init:
        verify_tokenizer(init, config.model.vocab_size)
        check_weights(model, init)
    choose_what_is_trained(model, config)
    resumed = None
    if (out / RESOLVED).exists() and not fresh:
        check_same(out, config, data.inputs)
        resumed = latest_checkpoint(out)
    size, trained = pieces[0].end - pieces[0].start, [p for p in model.parameters() if p.requires_grad]
    return {
        "run": str(out),
        "step": checkpoint_step(resumed) if resumed else 0,
        "steps": config.train.steps,
        "model": describe(model),
        "weights": str(config.train.init) if config.train.init else f"fresh, seed {config.train.seed}",
        "trained_parameters": sum(p.numel() for p in trained),
        "windows": len(pieces),
        "windows_left_out": empty,
        "window_bases": size,
        "windows_per_step": config.train.windows_per_step,
        "chunk": config.stream.chunk,
        "dtype": config.stream.dtype,
        "device": str(choose_device(config.stream.device)),
        "held_out_windows": len(held_out),
    }


def check_weights(model: Hybrid, directory: Path) -> None:
    """InputError listing all in which a checkpoint does not fit ``model``, by headers alone."""
    if is_adapter(directory):
        return check_weights(model, AdapterFile(directory).base)
    with open_files(directory) as files:
        found = fit(model, files, float8_block(read_hub_json(directory / CONFIG_FILE)))
        problems = config_problems(model.config, directory) + found.problems
        return refuse(directory, problems, damaged=bool(files.faults))
