"""Held-out windows scored with a checkpoint: by one process, or by the ranks that torchrun or Slurm started."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from genoctx.engine.fill import refuse_adapters
from genoctx.engine.mesh import Layout, Mesh
from genoctx.engine.sharded import ShardedEngine
from genoctx.engine.sharded_model import sharded_model
from genoctx.errors import UsageError
from genoctx.genome.tokenizer import verify_tokenizer
from genoctx.genome.window_table import read_table
from genoctx.genome.windows import Window
from genoctx.model.config import ModelConfig
from genoctx.model.weights import load_model, model_config
from genoctx.run.data import Data, open_data, windows_of
from genoctx.run.device import choose_device
from genoctx.run.evaluate import LEDGER_FILE, Extras, check_extras, evaluate
from genoctx.run.evaluation import Evaluation
from genoctx.run.launch import Place
from genoctx.run.monitor import Monitor
from genoctx.run.rundir import checkpoint_at, checkpoint_step
from genoctx.run.train import check_devices, prepare_machine
from genoctx.run.train_ranks import joined

HANG_SECONDS = 600.0
"""For which no rank may stand still; the default of ``parallel.hang_seconds``."""

REMEDY = "give a smaller --chunk if it was only slow; a ledger that was written is complete"


@dataclass(frozen=True)
class Request:
    """What is to be scored, with what, and where the result goes."""

    model: Path
    """A checkpoint, or a run: its newest."""
    windows: Path
    store: Path | None
    """None: the one that the table names."""
    split: str
    limit: int
    """Windows; 0 for all."""
    chunk: int
    """Tokens."""
    dtype: torch.dtype
    extras: Extras
    out: Path
    force: bool

    @functools.cached_property
    def checkpoint(self) -> Path:
        """InputError where there is none."""
        return checkpoint_at(self.model)

    @functools.cached_property
    def genome(self) -> Path:
        """The store; InputError for a table that cannot be read."""
        return self.store or Path(str(read_table(self.windows).header["store"]))

    def refuse_output(self) -> None:
        """UsageError where something lies that may not be replaced."""
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out} is a file", "give -o a directory")
        if self.force:
            return
        if (ledger := self.out / LEDGER_FILE).exists():
            raise UsageError(f"{ledger} exists", "give another -o, or --force to replace it")
        if self.extras.track and self.extras.track[0].exists():
            raise UsageError(f"{self.extras.track[0]} exists", "give another file, or --force to replace it")

    def open(self, config: ModelConfig, many: bool = False) -> tuple[Data, Sequence[Window]]:
        """What is scored, once all is looked at that may be wrong with it; GenoctxError where something is.

        ``many`` ranks write less (``check_extras``).
        """
        verify_tokenizer(self.checkpoint, config.vocab_size)
        data = open_data(self.genome, self.windows, config)
        windows = windows_of(data, self.split, self.limit)
        check_extras(self.extras, data, windows, self.chunk, many)
        return data, windows


def evaluate_alone(request: Request, monitor: Monitor) -> Evaluation:
    """In this process, which holds the whole model."""
    request.refuse_output()
    data, windows = request.open(model_config(request.checkpoint))
    prepare_machine(threads=0)
    model = load_model(request.checkpoint, dtype=request.dtype, device=choose_device("auto"))
    return evaluate(
        model,
        data,
        windows,
        chunk=request.chunk,
        step=checkpoint_step(request.checkpoint),
        out=request.out,
        monitor=monitor,
        extras=request.extras,
    )


def layout_for(ranks: int, windows: int) -> Layout:
    """As many windows side by side as there are and as divide the ranks; the ranks left over share each of them."""
    dp = max(n for n in range(1, ranks + 1) if ranks % n == 0 and n <= max(1, windows))
    return Layout(dp, ranks // dp)


def evaluate_rank(here: Place, request: Request, monitor: Monitor) -> Evaluation:
    """As one of many ranks, over which the weights are spread; what it writes is that of one process.

    The first rank writes and returns it, the others return ledgers without windows. Errors as in ``joined``.
    """
    check_devices("auto", here.local_rank + 1)
    prepare_machine(threads=0)
    device = choose_device("auto")
    with joined(here, device.type, HANG_SECONDS, REMEDY) as ranks:
        ranks.once(request.refuse_output)
        # a run's newest checkpoint may be another one a moment later, or elsewhere
        request = replace(request, model=ranks.once(lambda: request.checkpoint))
        config = ranks.together(lambda: _config(request.checkpoint))
        data, windows = ranks.together(lambda: request.open(config, many=True))
        with ranks.watched(request.out):
            ranks.at("reading the weights", patient=True)
            engine = _engine(request, config, layout_for(ranks.size, len(windows)), device)
            ranks.watch_layers(engine.model.layers)
            return evaluate(
                engine.model,
                data,
                windows,
                chunk=request.chunk,
                step=checkpoint_step(request.checkpoint),
                out=request.out,
                monitor=ranks.monitor(monitor),
                on_chunk=lambda *_: ranks.at("scoring"),
                on_window=ranks.pulse,
                extras=request.extras,
                engine=engine,
            )


def _config(checkpoint: Path) -> ModelConfig:
    refuse_adapters(checkpoint)
    return model_config(checkpoint)


def _engine(request: Request, config: ModelConfig, layout: Layout, device: torch.device) -> ShardedEngine:
    sharded = sharded_model(
        config,
        Mesh(layout, device.type),
        dtype=request.dtype,
        device=device,
        keep=False,
        seed=None,
        init=request.checkpoint,
    )
    return ShardedEngine(sharded.model, request.chunk, sharded=sharded)
