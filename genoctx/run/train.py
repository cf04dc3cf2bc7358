"""The training loop: a pure function of config and data, cut into steps that can be killed anywhere."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from genoctx.config import Config
from genoctx.engine.allocator import keep_freed_memory
from genoctx.engine.batch import Coefficients
from genoctx.engine.checkpoint import (
    LoopState,
    read_checkpoint,
    read_moments,
    read_state,
    write_checkpoint,
)
from genoctx.engine.engine import Engine, StepResult
from genoctx.engine.homes import Homes
from genoctx.engine.journal import Journal
from genoctx.engine.optimizer import AdamWSettings, Optimizer, Schedule
from genoctx.errors import StoppedOnRequest
from genoctx.genome.tokenizer import verify_tokenizer
from genoctx.genome.windows import Window
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.weights import load_weights
from genoctx.run.data import Data, longest_window, open_data, step_batches, training_pieces, windows_of
from genoctx.run.device import choose_device
from genoctx.run.evaluate import LEDGER_FILE, describe, evaluate
from genoctx.run.machine import peak_resident_memory
from genoctx.run.metrics import MetricsLog
from genoctx.run.monitor import Bar, Monitor
from genoctx.run.plan_train import fitted
from genoctx.run.rundir import RunDir, checkpoint_step
from genoctx.run.stop import StopRequested, StopSignals
from genoctx.run.trainable import (
    choose_what_is_trained,
    describe_trained,
    objectives_of,
    refuse_without_base,
    watch_first_step,
)


@dataclass(frozen=True)
class Outcome:
    """What a finished run can say about itself."""

    step: int
    bases: int
    checkpoint: Path
    resumed: bool


def prepare_machine(threads: int) -> None:
    """Thread count and allocator; once per process, before the first tensor."""
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)


def build_model(config: Config) -> Hybrid:
    """Fresh weights by seed, or those of ``train.init``, with what is trained chosen."""
    refuse_without_base(config)
    init = config.train.init
    dtype = getattr(torch, config.stream.dtype)
    model = build(
        config.model,
        dtype=dtype,
        device=choose_device(config.stream.device),
        objectives=objectives_of(config),
        seed=None if init else config.train.seed,
    )
    if init:
        verify_tokenizer(init, config.model.vocab_size)
        load_weights(model, init)
    choose_what_is_trained(model, config)
    return model


def train(
    config: Config, *, source: str, out: Path, monitor: Monitor, fresh: bool = False, max_seconds: float = 0.0
) -> Outcome:
    """Run or resume ``config`` in ``out``; a run that is finished already only says so.

    Raises StoppedOnRequest (exit 75) after saving when a signal or the time limit asks to stop.
    """
    prepare_machine(config.stream.threads)
    data = open_data(config.data.store, config.data.windows, config.model)
    config = fitted(config, longest_window(data, config.train.context), _device(config), out, monitor)
    with (
        RunDir.create_or_resume(out, config, source=source, inputs=data.inputs, fresh=fresh) as run,
        monitor.log_to(run.log_path),
        StopSignals(max_seconds) as stop,
    ):
        if (before := _finished(config, run)) is not None:
            monitor.info(f"nothing to do: {out} has all of its {before.step} steps; --fresh starts over")
            return before
        loop = _Loop(config, data, run, monitor)
        try:
            outcome = loop.run(stop)
        except StopRequested:
            loop.save()
            raise StoppedOnRequest(
                f"stopped by {stop.reason} after step {loop.state.step} of {config.train.steps}",
                "the same command goes on from there",
            ) from None
        monitor.info(f"done: step {outcome.step}, {outcome.bases:,} bases, checkpoint {outcome.checkpoint}")
        return outcome


def _device(config: Config) -> str:
    return choose_device(config.stream.device).type


def _finished(config: Config, run: RunDir) -> Outcome | None:
    """The outcome of a run that has nothing left to do, without building its model."""
    checkpoint, steps = run.latest_checkpoint(), config.train.steps
    if checkpoint is None or checkpoint_step(checkpoint) < steps:
        return None
    if config.eval.at_end and not (run.eval_path(steps) / LEDGER_FILE).exists():
        return None
    state = read_state(checkpoint)
    return Outcome(state.step, state.bases, checkpoint, resumed=True)


class _Loop:
    def __init__(self, config: Config, data: Data, run: RunDir, monitor: Monitor) -> None:
        self.config, self.data, self.run_dir, self.monitor = config, data, run, monitor
        self.model = build_model(config)
        o, t = config.optim, config.train
        settings = AdamWSettings(o.betas, o.eps, o.weight_decay, o.clip_norm)
        homes = self._homes()
        self.optimizer = Optimizer(self.model, settings, homes)
        self.schedule = Schedule(o.lr, t.steps, o.warmup_steps, o.min_lr_ratio)
        coefficients = Coefficients(config.loss.balance, config.loss.indexer_kl)
        journal = Journal(run.window_path, 60 * config.checkpoint.window_minutes, monitor.warn)
        self.engine = Engine(self.model, config.stream.chunk, coefficients, homes=homes, journal=journal)
        self.state = LoopState(step=0, bases=0)
        if (checkpoint := run.latest_checkpoint()) is not None:
            self.state = read_checkpoint(checkpoint, self.model, self.optimizer)
        elif t.init and t.init_moments:
            read_moments(t.init, self.optimizer)
        self.saved_step = self.state.step if checkpoint else -1
        self.saved_at = time.monotonic()

    def _homes(self) -> Homes:
        wanted = dict(vars(self.config.homes))
        folder = wanted.pop("folder") or self.run_dir.path
        return Homes.of(wanted, self.model.device, folder)

    def _key(self, step: int) -> str:
        """What the gradients of a step depend on, to the last bit."""
        s, inputs, init = self.config.stream, self.data.inputs, self.config.train.init
        return f"{self.config.digest} {inputs.store} {inputs.windows} step {step} chunk {s.chunk} {s.dtype} {init}"

    def run(self, stop: StopSignals) -> Outcome:
        config, state = self.config, self.state
        pieces, empty = training_pieces(self.data, config.train.context, config.loss.softmask)
        if config.eval.at_start or config.eval.at_end or config.eval.every_steps:
            windows_of(self.data, config.eval.split)  # refused now rather than after the last step
        self._introduce(pieces, empty)
        self._evaluate_at(0, config.eval.at_start and state.step == 0, stop)
        bases_per_step = config.train.windows_per_step * (pieces[0].end - pieces[0].start)
        with MetricsLog(self.run_dir.metrics_path, after_step=state.step) as metrics:
            total = config.train.steps * bases_per_step
            with self.monitor.progress("train", total, "bases") as bar:
                bar.done = bar.begin = state.step * bases_per_step
                while self.state.step < config.train.steps:
                    self._step(pieces, metrics, bar, stop)
                    bar.done = self.state.step * bases_per_step
                    self._cadence(stop)
        self.save()
        self._evaluate_at(config.train.steps, config.eval.at_end, stop)
        checkpoint = self.run_dir.latest_checkpoint()
        assert checkpoint is not None
        return Outcome(self.state.step, self.state.bases, checkpoint, self.run_dir.resumed)

    def _introduce(self, pieces: list[Window], empty: int) -> None:
        c = self.config
        size = pieces[0].end - pieces[0].start
        self.monitor.info(describe(self.model))
        if trained := describe_trained(self.model):
            self.monitor.info(trained)
        self.monitor.info(
            f"{len(pieces):,} training windows of {size:,} bases"
            + (f" ({empty:,} without a base to predict left out)" if empty else "")
            + f", {c.train.windows_per_step} a step, chunks of {min(c.stream.chunk, size):,}, {c.stream.dtype}, "
            f"{torch.get_num_threads()} threads"
        )
        if self.state.step:
            self.monitor.info(f"resuming after step {self.state.step} of {c.train.steps}")

    def _step(self, pieces: list[Window], metrics: MetricsLog, bar: Bar, stop: StopSignals) -> None:
        t, step = self.config.train, self.state.step + 1
        batches = step_batches(self.data, pieces, t, step - 1, self.config.loss.softmask)

        def on_chunk(tokens: int, sweep: str) -> None:
            bar.advance(tokens / 2)  # two sweeps; the last chunk has one, so the loop sets the exact count
            stop.check()

        rate, begin = self.schedule.rate(step), time.perf_counter()
        with watch_first_step(self.model, self.config, step, self.monitor) as movement:
            result = self.engine.train_step(
                batches, self.optimizer, rate, on_chunk, movement, self._key(step)
            )
        seconds = time.perf_counter() - begin
        self.state = LoopState(
            step=step, bases=self.state.bases + result.losses.targets * self.data.codec.letters
        )
        self._log(metrics, bar, result, rate, seconds)

    def _log(self, metrics: MetricsLog, bar: Bar, result: StepResult, rate: float, seconds: float) -> None:
        losses, letters = result.losses, self.data.codec.letters
        line = metrics.append(
            step=self.state.step,
            bases=self.state.bases,
            loss_nats=losses.nats / (losses.weight * letters),
            grad_norm=result.grad_norm,
            lr=rate,
            bases_per_s=losses.targets * letters / seconds,
            host_peak_bytes=peak_resident_memory(),
            balance=losses.balance,
            indexer_kl=losses.indexer_kl,
        )
        bar.update(f"step {self.state.step}, {line['loss_bits']:.4f} bits/base")

    def _cadence(self, stop: StopSignals) -> None:
        """Checkpoints by step and minute, evaluations by step, and the moment to stop between steps."""
        c, step = self.config, self.state.step
        by_step = c.checkpoint.every_steps and step % c.checkpoint.every_steps == 0
        by_time = (
            c.checkpoint.every_minutes and time.monotonic() - self.saved_at > 60 * c.checkpoint.every_minutes
        )
        if by_step or by_time:
            self.save()
        if step < c.train.steps:
            self._evaluate_at(step, bool(c.eval.every_steps) and step % c.eval.every_steps == 0, stop)
            stop.check()

    def save(self) -> None:
        """Commit a checkpoint of the last finished step, unless there is one."""
        if self.saved_step == self.state.step:
            return
        folder = self.run_dir.new_checkpoint_dir()
        try:
            write_checkpoint(folder, self.model, self.optimizer, self.state)
            self.run_dir.commit_checkpoint(folder, self.state.step)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # a full disk is not helped by half a checkpoint
            raise
        self.run_dir.prune(self.config.checkpoint.keep)
        self.saved_step, self.saved_at = self.state.step, time.monotonic()

    def _evaluate_at(self, step: int, wanted: bool, stop: StopSignals) -> None:
        folder = self.run_dir.eval_path(step)
        if not wanted or (folder / LEDGER_FILE).exists():
            return
        windows = windows_of(self.data, self.config.eval.split, self.config.eval.limit)
        evaluate(
            self.model,
            self.data,
            windows,
            chunk=self.config.stream.chunk,
            step=step,
            out=folder,
            monitor=self.monitor,
            on_chunk=lambda tokens, sweep: stop.check(),
        )
