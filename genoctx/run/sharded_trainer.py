"""One rank's share of model, optimizer and engine; see :class:`genoctx.run.trainer.Trainer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from genoctx.config import Config
from genoctx.engine.batch import Batch
from genoctx.engine.checkpoint import LoopState
from genoctx.engine.mesh import Layout, Mesh
from genoctx.engine.sharded import ShardedEngine, ShardedOptimizer, idle, rounds
from genoctx.engine.sharded_checkpoint import CheckpointWriter, read_sharded, read_sharded_moments
from genoctx.engine.sharded_model import sharded_model
from genoctx.genome.tokenizer import verify_tokenizer
from genoctx.genome.windows import Window
from genoctx.model.hybrid import build
from genoctx.run.data import Data, read_batch, step_groups, tokens_of
from genoctx.run.device import choose_device
from genoctx.run.evaluate import describe
from genoctx.run.ranks import patience
from genoctx.run.rundir import WINDOW
from genoctx.run.trainable import (
    choose_what_is_trained,
    describe_trained,
    objectives_of,
    refuse_without_base,
)
from genoctx.run.trainer import Trainer, Warn


class ShardedTrainer(Trainer):
    """One rank of many: its parts of the weights, its windows or pieces of them."""

    def __init__(self, config: Config, data: Data, run: Path, warn: Warn, layout: Layout) -> None:
        self.layout = layout
        super().__init__(config, data, run, warn)

    def _make(self) -> None:
        config, device = self.config, choose_device(self.config.stream.device)
        refuse_without_base(config)
        self.mesh = Mesh(self.layout, device.type, patience(config.parallel.hang_seconds))
        init, objectives = config.train.init, objectives_of(config)
        dtype = getattr(torch, config.stream.dtype)
        if init:
            self.mesh.together(lambda: verify_tokenizer(init, config.model.vocab_size))
        sharded = sharded_model(
            config.model,
            self.mesh,
            dtype=dtype,
            device=device,
            keep=config.parallel.keep,
            objectives=objectives,
            seed=config.train.seed,
            init=init,
            choose=lambda model: choose_what_is_trained(model, config),
        )
        whole = build(config.model, dtype=dtype, device="meta", objectives=objectives)
        choose_what_is_trained(whole, config)
        self.introduction = (describe(whole), describe_trained(whole), self._ranks())
        homes = self._homes()
        self.sharded = ShardedOptimizer(sharded, self._adamw(), homes)
        self.optimizer = self.sharded
        journals = self.folder / WINDOW
        journals.mkdir(exist_ok=True)
        self.engine = self.sharded_engine = ShardedEngine(
            sharded.model,
            config.stream.chunk,
            self._coefficients(),
            homes=homes,
            journal=self._journal(journals / f"rank-{self.mesh.rank}"),
            sharded=sharded,
        )
        self.mesh.together(self._require_room)
        batches = -(-config.train.windows_per_step // config.train.batch)
        if batches < self.layout.dp:
            self.warn(
                f"{self.layout.dp} windows can be in work at a time, and a step has {batches}: the other ranks "
                "only help to carry the weights; raise train.windows_per_step or parallel.cp"
            )
        self.writer = CheckpointWriter(sharded, self.sharded)

    def _ranks(self) -> str:
        """One line on who works with whom."""
        size, keep = self.layout, self.config.parallel.keep
        text = f"{size.world} ranks: dp {size.dp} (windows at a time) x cp {size.cp} (ranks a window)"
        text += f", experts over {size.ep} ranks" if size.ep > 1 else ""
        return text + (", weights gathered once a sweep" if keep else ", weights gathered layer by layer")

    def deal(self, pieces: Sequence[Window], step: int) -> list[Batch]:
        """This rank's micro-batches: its row's windows, and idle ones where there is none for it."""
        c, layout = self.config, self.layout
        groups = step_groups(pieces, c.train, step)
        lengths = [tokens_of(self.data, group[0]) for group in groups]
        found = []
        for chunks, taken in rounds(lengths, layout.dp, c.stream.chunk):
            index = taken[self.mesh.dp_rank]
            found.append(
                idle(chunks, layout.cp)
                if index is None
                else read_batch(self.data, groups[index], c.loss.softmask)
            )
        return found

    def count_chunks(self, batch: Batch) -> int:
        return len(self.sharded_engine.limits(batch))

    def restore(self, checkpoint: Path) -> LoopState:
        return read_sharded(checkpoint, self.sharded.sharded, self.sharded)

    def take_moments(self, directory: Path) -> None:
        read_sharded_moments(directory, self.sharded.sharded, self.sharded)

    def begin_save(self, folder: Path, state: LoopState) -> None:
        self.writer.start(folder, state)

    def is_saved(self) -> bool:
        return self.writer.poll()

    def end_save(self) -> None:
        self.writer.wait()
