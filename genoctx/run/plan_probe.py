"""The one unknown of a plan for this processor, measured: the peak of a short window, in a process of its own.

A window of a few chunks takes what a long one takes, less the state that grows with it, and that is known in
closed form (genoctx/run/plan_bytes.py). So a step of a short window, with random tokens and fresh weights,
is what a plan adds to. Weights and tokens do not matter: every tensor has the same size whatever is in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from genoctx.config import Config
from genoctx.errors import GenoctxError
from genoctx.model.config import ModelConfig
from genoctx.run.machine import peak_resident_memory

CHUNKS, STEPS = 4, 2
"""Of a measured window, and such windows: the heap settles over a few chunks, each a little higher than the last."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step to measure."""

    model: ModelConfig
    length: int
    """Tokens of the window."""
    chunk: int
    batch: int = 1
    dtype: str = "float32"
    threads: int = 0
    balance: bool = False
    indexer_kl: str = "off"
    steps: int = 1

    def shortened(self) -> Case:
        """What is measured of it: STEPS steps on windows of no more than CHUNKS chunks."""
        return replace(self, length=min(self.length, CHUNKS * self.chunk), steps=STEPS)


@dataclass(frozen=True)
class Measured:
    """What one step took."""

    length: int
    base_bytes: int
    """Peak resident memory before the step: the interpreter with torch, and the weights."""
    peak_bytes: int
    forward_s: float
    backward_s: float


def _fields(case: Case) -> dict[str, Any]:
    return {name: getattr(case, name) for name in case.__dataclass_fields__}


def case_of(config: Config, length: int, chunk: int) -> Case:
    """The step that ``config`` takes on windows of ``length`` tokens."""
    kl = config.loss.indexer_kl_mode if config.loss.indexer_kl > 0 else "off"
    return Case(
        model=config.model,
        length=length,
        chunk=min(chunk, length),
        batch=config.train.batch,
        dtype=config.stream.dtype,
        threads=config.stream.threads,
        balance=config.loss.balance > 0,
        indexer_kl=kl,
    )


def measure(case: Case) -> Measured:
    """Run ``case`` in a fresh process. GenoctxError when it dies, most likely for memory."""
    given = json.dumps(_fields(case) | {"model": case.model.to_dict()})
    # without the process's own heap settings, which would move the peak
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-m", "genoctx.run.plan_probe"],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise GenoctxError(
            f"measuring {case.length:,} tokens in chunks of {case.chunk:,} ended with status "
            f"{done.returncode}: {last[0]}",
            "give a smaller stream.chunk, or --no-measure for the closed form alone",
        )
    return Measured(**json.loads(done.stdout))


def run(case: Case) -> Measured:
    """The step itself, in this process."""
    import torch

    import genoctx.run.train  # noqa: F401  what a run imports is in its memory
    from genoctx.engine.allocator import keep_freed_memory
    from genoctx.engine.batch import Batch, Coefficients
    from genoctx.engine.engine import Engine
    from genoctx.engine.optimizer import AdamWSettings, Optimizer
    from genoctx.model.block import Objectives
    from genoctx.model.hybrid import build

    keep_freed_memory()
    if case.threads:
        torch.set_num_threads(case.threads)
    objectives = Objectives(balance=case.balance, kl_mode=case.indexer_kl)
    model = build(case.model, dtype=getattr(torch, case.dtype), objectives=objectives, seed=0)
    optimizer = Optimizer(model, AdamWSettings())
    weights = Coefficients(float(case.balance) * 1e-3, 1e-3 if case.indexer_kl != "off" else 0.0)
    engine = Engine(model, case.chunk, weights)

    def window(length: int) -> Batch:
        tokens = torch.randint(0, case.model.vocab_size, (case.batch, length + 1))
        names = tuple(f"row {i}" for i in range(case.batch))
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), names)

    base = peak_resident_memory()
    engine.train_step([window(min(16, case.length))], optimizer, 1e-4)  # makes the moments
    spent = {"forward": 0.0, "backward": 0.0}
    last = time.perf_counter()

    def on_chunk(tokens: int, sweep: str) -> None:
        nonlocal last
        del tokens
        now = time.perf_counter()
        spent[sweep] += now - last
        last = now

    for _ in range(case.steps):
        last = time.perf_counter()
        engine.train_step([window(case.length)], optimizer, 1e-4, on_chunk)
    seconds = {sweep: total / case.steps for sweep, total in spent.items()}
    return Measured(case.length, base, peak_resident_memory(), seconds["forward"], seconds["backward"])


if __name__ == "__main__":
    raw = json.load(sys.stdin)
    model: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.pop("model").items()}
    print(json.dumps(asdict(run(Case(model=ModelConfig(**model), **raw)))))
