"""The steps of a run, one after the other: each draws its windows, trains, is logged and now and then saved.

The same for one process and for many ranks, which walk through it together (genoctx/run/ranks.py).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from genoctx.config import Config
from genoctx.engine.checkpoint import LoopState
from genoctx.engine.engine import StepResult
from genoctx.engine.movement import Movement
from genoctx.engine.optimizer import Schedule
from genoctx.genome.windows import Window
from genoctx.run.data import Data, training_pieces, windows_of
from genoctx.run.evaluate import LEDGER_FILE
from genoctx.run.machine import peak_resident_memory
from genoctx.run.metrics import MetricsLog
from genoctx.run.monitor import Bar, Monitor
from genoctx.run.ranks import Ranks
from genoctx.run.rundir import RunDir
from genoctx.run.saver import Saver
from genoctx.run.spot import Spot
from genoctx.run.stop import StopSignals
from genoctx.run.trainable import check_movement
from genoctx.run.trainer import Trainer
from genoctx_kernels import dispatch


@dataclass(frozen=True)
class Outcome:
    """What a finished run can say about itself."""

    step: int
    bases: int
    checkpoint: Path
    resumed: bool


class Loop:
    """A run between two interruptions."""

    def __init__(
        self, config: Config, data: Data, run: RunDir, trainer: Trainer, monitor: Monitor, ranks: Ranks
    ) -> None:
        """Restores the newest checkpoint, if there is one."""
        ranks.at("reading the newest checkpoint", patient=True)
        ranks.watch_layers(trainer.model.layers)
        self.config, self.data, self.run_dir, self.trainer = config, data, run, trainer
        self.monitor, self.ranks = monitor, ranks
        o, t = config.optim, config.train
        self.schedule = Schedule(o.lr, t.steps, o.warmup_steps, o.min_lr_ratio)
        self.state = LoopState(step=0, bases=0)
        if (checkpoint := ranks.once(run.latest_checkpoint)) is not None:
            self.state = trainer.restore(checkpoint)
        elif t.init and t.init_moments:
            trainer.take_moments(t.init)
        self.saver = Saver(run, trainer, ranks, config.checkpoint.keep, self.state.step if checkpoint else -1)

    def _key(self, step: int) -> str:
        """What the gradients of a step depend on, to the last bit."""
        s, inputs, init = self.config.stream, self.data.inputs, self.config.train.init
        return f"{self.config.digest} {inputs.store} {inputs.windows} step {step} chunk {s.chunk} {s.dtype} {init}"

    def run(self, stop: StopSignals) -> Outcome:
        """All steps that are left, and the evaluations; StopRequested between two chunks when asked."""
        config, state = self.config, self.state
        pieces, empty = self.ranks.together(self._windows)
        self._introduce(pieces, empty)
        self._evaluate_at(0, config.eval.at_start and state.step == 0, stop)
        bases_per_step = config.train.windows_per_step * (pieces[0].end - pieces[0].start)
        with self._metrics() as metrics:
            total = config.train.steps * bases_per_step
            with self.monitor.progress("train", total, "bases") as bar:
                bar.done = bar.begin = state.step * bases_per_step
                while self.state.step < config.train.steps:
                    self._step(pieces, metrics, bar, stop)
                    bar.done = self.state.step * bases_per_step
                    self._cadence(stop)
        self.save()
        self._evaluate_at(config.train.steps, config.eval.at_end, stop)
        checkpoint = self.ranks.once(self.run_dir.latest_checkpoint)
        assert checkpoint is not None
        return Outcome(self.state.step, self.state.bases, checkpoint, self.run_dir.resumed)

    def _windows(self) -> tuple[list[Window], int]:
        """What is trained on, and how many pieces are left out; InputError for a table that will not do."""
        c = self.config
        if c.eval.at_start or c.eval.at_end or c.eval.every_steps:
            windows_of(self.data, c.eval.split)  # refused now rather than after the last step
        return training_pieces(self.data, c.train.context, c.loss.softmask)

    def _metrics(self) -> AbstractContextManager[MetricsLog | None]:
        if not self.ranks.first:
            return nullcontext()
        return MetricsLog(self.run_dir.metrics_path, after_step=self.state.step)

    def _introduce(self, pieces: list[Window], empty: int) -> None:
        c = self.config
        size = pieces[0].end - pieces[0].start
        for line in self.trainer.introduction:
            if line:
                self.monitor.info(line)
        self.monitor.info(
            f"{len(pieces):,} training windows of {size:,} bases"
            + (f" ({empty:,} without a base to predict left out)" if empty else "")
            + f", {c.train.windows_per_step} a step, chunks of {min(c.stream.chunk, size):,}, {c.stream.dtype}, "
            f"{torch.get_num_threads()} threads"
        )
        if self.state.step:
            self.monitor.info(f"resuming after step {self.state.step} of {c.train.steps}")

    def _step(self, pieces: list[Window], metrics: MetricsLog | None, bar: Bar, stop: StopSignals) -> None:
        step = self.state.step + 1
        self.ranks.at(f"reading the windows of step {step}")
        batches = self.ranks.together(lambda: self.trainer.deal(pieces, step - 1))
        spot = Spot(step, [(", ".join(b.names), self.trainer.count_chunks(b)) for b in batches])
        self.ranks.at(str(spot))

        def on_chunk(tokens: int, sweep: str) -> None:
            bar.advance(tokens / 2)  # two sweeps; the last chunk has one, so the loop sets the exact count
            spot.passed(sweep)
            self.saver.settle()
            self.ranks.at(str(spot))
            stop.check()

        trainer, rate, begin = self.trainer, self.schedule.rate(step), time.perf_counter()
        watch = Movement() if step == 1 else None
        result = trainer.engine.train_step(batches, trainer.optimizer, rate, on_chunk, watch, self._key(step))
        seconds = time.perf_counter() - begin
        if watch is not None:
            self.ranks.together(lambda: check_movement(watch, trainer.model, self.config, self.monitor))
            self._tell_kernels()
        self.state = LoopState(
            step=step, bases=self.state.bases + result.losses.targets * self.data.codec.letters
        )
        peak = self.ranks.most(peak_resident_memory())
        self.ranks.once(lambda: self._log(metrics, bar, result, rate, seconds, peak))

    def _tell_kernels(self) -> None:
        """On a GPU, which ops did not take their Triton kernel in the step that was made, and why."""
        if self.trainer.model.device.type != "cuda":
            return
        for op, choice in sorted(dispatch.chosen.items()):
            if not choice.triton:
                self.monitor.info(f"{op} runs in plain torch: {choice.reason}")

    def _log(
        self,
        metrics: MetricsLog | None,
        bar: Bar,
        result: StepResult,
        rate: float,
        seconds: float,
        peak: int,
    ) -> None:
        assert metrics is not None
        losses, letters = result.losses, self.data.codec.letters
        line = metrics.append(
            step=self.state.step,
            bases=self.state.bases,
            loss_nats=losses.nats / (losses.weight * letters),
            grad_norm=result.grad_norm,
            lr=rate,
            bases_per_s=losses.targets * letters / seconds,
            host_peak_bytes=peak,
            balance=losses.balance,
            indexer_kl=losses.indexer_kl,
        )
        bar.update(f"step {self.state.step}, {line['loss_bits']:.4f} bits/base")

    def _cadence(self, stop: StopSignals) -> None:
        """Checkpoints by step and minute, evaluations by step, and the moment to stop between steps."""
        c, step = self.config, self.state.step
        minutes = (time.monotonic() - self.saver.time) / 60
        by_step = c.checkpoint.every_steps and step % c.checkpoint.every_steps == 0
        by_time = c.checkpoint.every_minutes and minutes > c.checkpoint.every_minutes
        if by_step or self.ranks.any(bool(by_time)):
            self.saver.begin(self.state)
        if step < c.train.steps:
            self._evaluate_at(step, bool(c.eval.every_steps) and step % c.eval.every_steps == 0, stop)
            stop.check()

    def save(self) -> None:
        """Commit a checkpoint of the last finished step, unless there is one."""
        self.saver.begin(self.state)
        self.saver.finish()

    def _evaluate_at(self, step: int, wanted: bool, stop: StopSignals) -> None:
        folder = self.run_dir.eval_path(step)
        if not wanted or self.ranks.once((folder / LEDGER_FILE).exists):
            return
        windows = windows_of(self.data, self.config.eval.split, self.config.eval.limit)
        self.ranks.at(f"the evaluation at step {step}", patient=True)

        def on_chunk(tokens: int, sweep: str) -> None:
            self.saver.settle()
            self.ranks.at(f"the evaluation at step {step}")
            stop.check()

        self.trainer.evaluate(windows, step, folder, self.monitor, on_chunk, self.ranks.pulse)
