"""Model, optimizer and engine of a run: how they are made, fed with windows, saved and restored.

``Trainer`` is that of one process, ``ShardedTrainer`` that of one rank of many; a loop (genoctx/run/loop.py)
calls them alike. Every method of the second is collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from genoctx.config import Config
from genoctx.engine.batch import Batch, Coefficients, bounds
from genoctx.engine.checkpoint import LoopState, read_checkpoint, read_moments, write_checkpoint
from genoctx.engine.engine import Engine
from genoctx.engine.homes import Homes
from genoctx.engine.journal import Journal
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.stream import OnChunk
from genoctx.genome.tokenizer import verify_tokenizer
from genoctx.genome.windows import Window
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.weights import load_weights
from genoctx.run.data import Data, longest_window, read_batch, step_groups
from genoctx.run.device import choose_device
from genoctx.run.evaluate import describe, evaluate
from genoctx.run.monitor import Monitor
from genoctx.run.rundir import WINDOW
from genoctx.run.trainable import (
    choose_what_is_trained,
    describe_trained,
    objectives_of,
    refuse_without_base,
)

Warn = Callable[[str], None]


def build_model(config: Config) -> Hybrid:
    """Fresh weights by seed, or those of ``train.init``, with what is trained chosen."""
    refuse_without_base(config)
    init = config.train.init
    model = build(
        config.model,
        dtype=getattr(torch, config.stream.dtype),
        device=choose_device(config.stream.device),
        objectives=objectives_of(config),
        seed=None if init else config.train.seed,
    )
    if init:
        verify_tokenizer(init, config.model.vocab_size)
        load_weights(model, init)
    choose_what_is_trained(model, config)
    return model


class Trainer:
    """One process."""

    optimizer: Optimizer
    engine: Engine
    introduction: tuple[str, ...]
    """Lines on the model and on what of it is trained."""

    def __init__(self, config: Config, data: Data, run: Path, warn: Warn) -> None:
        """``run``: the run's directory; ``warn`` takes a line of text."""
        self.config, self.data, self.folder, self.warn = config, data, run, warn
        self._make()

    def _make(self) -> None:
        model, homes = build_model(self.config), self._homes()
        self.introduction = (describe(model), describe_trained(model))
        self.optimizer = Optimizer(model, self._adamw(), homes)
        self.engine = Engine(
            model,
            self.config.stream.chunk,
            self._coefficients(),
            homes=homes,
            journal=self._journal(self.folder / WINDOW),
        )
        self._require_room()

    def _require_room(self) -> None:
        """GenoctxError when no disk has room for the longest window."""
        train = self.config.train
        self.engine.require_room(longest_window(self.data, train.context), train.batch)

    @property
    def model(self) -> Hybrid:
        return self.engine.model

    def _adamw(self) -> AdamWSettings:
        o = self.config.optim
        return AdamWSettings(o.betas, o.eps, o.weight_decay, o.clip_norm)

    def _coefficients(self) -> Coefficients:
        return Coefficients(self.config.loss.balance, self.config.loss.indexer_kl)

    def _homes(self) -> Homes:
        wanted = dict(vars(self.config.homes))
        folder = wanted.pop("folder") or self.folder
        return Homes.of(wanted, choose_device(self.config.stream.device), folder)

    def _journal(self, folder: Path) -> Journal:
        return Journal(folder, 60 * self.config.checkpoint.window_minutes, self.warn)

    # windows

    def deal(self, pieces: Sequence[Window], step: int) -> list[Batch]:
        """The micro-batches of step ``step`` (0 is the first) that this process sweeps."""
        groups = step_groups(pieces, self.config.train, step)
        return [read_batch(self.data, group, self.config.loss.softmask) for group in groups]

    def count_chunks(self, batch: Batch) -> int:
        """In how many chunks a micro-batch is swept."""
        return len(bounds(batch.length, self.config.stream.chunk))

    def evaluate(
        self,
        windows: Sequence[Window],
        step: int,
        out: Path,
        monitor: Monitor,
        on_chunk: OnChunk,
        on_window: Callable[[], None],
    ) -> None:
        """Score ``windows`` into ``out``."""
        evaluate(
            self.model,
            self.data,
            windows,
            chunk=self.config.stream.chunk,
            step=step,
            out=out,
            monitor=monitor,
            on_chunk=on_chunk,
            on_window=on_window,
            engine=self.engine,
        )

    # checkpoints

    def restore(self, checkpoint: Path) -> LoopState:
        """Put weights and moments of ``checkpoint`` back; InputError when they cannot be read."""
        return read_checkpoint(checkpoint, self.model, self.optimizer)

    def take_moments(self, directory: Path) -> None:
        """AdamW's moments of another run's checkpoint; InputError where there are none."""
        read_moments(directory, self.optimizer)

    def begin_save(self, folder: Path, state: LoopState) -> None:
        """Write a checkpoint into an empty folder; it may be complete only after ``end_save``."""
        write_checkpoint(folder, self.model, self.optimizer, state)

    def is_saved(self) -> bool:
        """Whether ``end_save`` would return at once."""
        return True

    def end_save(self) -> None:
        """Wait until the checkpoint that was begun is complete; GenoctxError where it cannot be."""
