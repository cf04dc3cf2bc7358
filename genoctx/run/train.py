"""``genoctx train``: a pure function of config and data, cut into steps that can be killed anywhere."""

from __future__ import annotations

from pathlib import Path

import torch

from genoctx.config import Config
from genoctx.engine.allocator import keep_freed_memory
from genoctx.engine.checkpoint import read_state
from genoctx.engine.mesh import Layout
from genoctx.errors import StoppedOnRequest, UsageError
from genoctx.run.data import Data, longest_window, open_data
from genoctx.run.device import choose_device
from genoctx.run.evaluate import LEDGER_FILE
from genoctx.run.loop import Loop, Outcome
from genoctx.run.monitor import Monitor
from genoctx.run.plan_train import fitted
from genoctx.run.ranks import Ranks
from genoctx.run.rundir import RunDir, checkpoint_step
from genoctx.run.stop import StopRequested, StopSignals
from genoctx.run.trainer import Trainer

ALONE = Ranks()


def prepare_machine(threads: int) -> None:
    """Thread count and allocator; once per process, before the first tensor."""
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)


def train(
    config: Config,
    *,
    source: str,
    out: Path,
    monitor: Monitor,
    fresh: bool = False,
    max_seconds: float = 0.0,
    ranks: Ranks = ALONE,
) -> Outcome:
    """Run or resume ``config`` in ``out``; a run that is finished already only says so.

    As one of many ranks every one of them calls this (genoctx/run/train_ranks.py); the first one talks.
    Raises StoppedOnRequest (exit 75) after saving when a signal or the time limit asks to stop.
    """
    prepare_machine(config.stream.threads)
    data = ranks.together(lambda: open_data(config.data.store, config.data.windows, config.model))
    device, length = choose_device(config.stream.device).type, longest_window(data, config.train.context)
    config = ranks.once(lambda: fitted(config, length, device, out, monitor, ranks.size, ranks.here))
    with (
        _open(config, data, source, out, fresh, ranks) as run,
        monitor.log_to(run.log_path),
        ranks.watched(run.path, run.log_path),
        ranks.stop_signals(max_seconds) as stop,
    ):
        if (before := ranks.once(lambda: _finished(config, run))) is not None:
            monitor.info(f"nothing to do: {out} has all of its {before.step} steps; --fresh starts over")
            return before
        trainer = _trainer(config, data, run, monitor, ranks)
        return _run(Loop(config, data, run, trainer, monitor, ranks), stop)


def check_layout(config: Config, ranks: int) -> Layout:
    """The layout of ``ranks`` ranks. ConfigError where ``[parallel]`` and the model do not divide them."""
    p = config.parallel
    return Layout.of(ranks, dp=p.dp, cp=p.cp, ep=p.ep, experts=config.model.n_routed_experts)


def check_devices(device: str, here: int) -> None:
    """UsageError where this machine has fewer GPUs than the ``here`` ranks that would each take one."""
    if choose_device(device).type == "cuda" and here > (there := torch.cuda.device_count()):
        raise UsageError(
            f"{here} ranks on a machine with {there} GPU(s)",
            "start one rank a GPU, or set stream.device = 'cpu'",
        )


def _run(loop: Loop, stop: StopSignals) -> Outcome:
    try:
        outcome = loop.run(stop)
    except StopRequested:
        loop.save()
        raise StoppedOnRequest(
            f"stopped by {stop.reason} after step {loop.state.step} of {loop.config.train.steps}",
            "the same command goes on from there",
        ) from None
    loop.monitor.info(f"done: step {outcome.step}, {outcome.bases:,} bases, checkpoint {outcome.checkpoint}")
    return outcome


def _open(config: Config, data: Data, source: str, out: Path, fresh: bool, ranks: Ranks) -> RunDir:
    """The run's directory, locked by the first rank for all of them."""
    opened: list[RunDir] = []

    def first() -> bool:
        opened.append(
            RunDir.create_or_resume(
                out, config, source=source, inputs=data.inputs, fresh=fresh, ranks=ranks.size
            )
        )
        return opened[0].resumed

    resumed = ranks.once(first)
    return opened[0] if opened else RunDir.beside(out, resumed)


def _trainer(config: Config, data: Data, run: RunDir, monitor: Monitor, ranks: Ranks) -> Trainer:
    if ranks.size == 1:
        return Trainer(config, data, run.path, monitor.warn)
    from genoctx.run.sharded_trainer import ShardedTrainer

    return ShardedTrainer(config, data, run.path, monitor.warn, check_layout(config, ranks.size))


def _finished(config: Config, run: RunDir) -> Outcome | None:
    """The outcome of a run that has nothing left to do, without building its model."""
    checkpoint, steps = run.latest_checkpoint(), config.train.steps
    if checkpoint is None or checkpoint_step(checkpoint) < steps:
        return None
    if config.eval.at_end and not (run.eval_path(steps) / LEDGER_FILE).exists():
        return None
    state = read_state(checkpoint)
    return Outcome(state.step, state.bases, checkpoint, resumed=True)
