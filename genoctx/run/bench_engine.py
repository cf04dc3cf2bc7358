"""``genoctx bench engine``: a full training step beside a peer's, same weights, same tokens.

The peer is Hugging Face's ``glm5_next``, or our own layers over the whole window with checkpoints. The two take
turns, A B A B, each turn in a process of its own, so that memory is its own too. A turn is a short step to warm up
and one measured step: forward and backward of the mean loss over the whole window. Loss and gradient norm of both
must agree, or no figure is given.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genoctx.errors import CheckFailed, GenoctxError
from genoctx.run.machine import peak_resident_memory

if TYPE_CHECKING:
    from torch import Tensor

OURS, THEIRS, WHOLE = "genoctx", "transformers", "whole"
LOSS_LIMIT, NORM_LIMIT = 1e-4, 1e-3
"""Largest differences of loss (nats) and of gradient norm (relative) between two float32 implementations."""

_WARM_UP = 512


@dataclass(frozen=True)
class Turn:
    """One measured step of one side."""

    seconds: float
    nats: float
    grad_norm: float
    peak_bytes: int


@dataclass
class Side:
    """All turns of one side at one length."""

    name: str
    context: int
    turns: list[Turn] = field(default_factory=list)
    failed: str = ""
    """Why there is no figure, if so."""

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each turn, ascending."""
        return sorted(self.context / turn.seconds for turn in self.turns)

    @property
    def rate(self) -> float:
        """Their median."""
        return statistics.median(self.rates)

    @property
    def peak_bytes(self) -> int:
        """The most of all turns."""
        return max(turn.peak_bytes for turn in self.turns)


def run_engine(
    preset: str,
    contexts: Sequence[int],
    chunk: int,
    threads: int,
    rounds: int,
    say: Callable[[str], None],
    peer: str = THEIRS,
) -> list[tuple[Side, Side]]:
    """Ours and the peer's (THEIRS or WHOLE) at each length. Raises CheckFailed where both ran and do not agree."""
    from genoctx.config import preset_model
    from genoctx.model.hybrid import build
    from genoctx.model.weights import save_weights

    results = []
    with tempfile.TemporaryDirectory(prefix="genoctx-bench-") as name:
        folder = Path(name)
        save_weights(build(preset_model(preset), seed=0), folder)
        for context in contexts:
            sides = (Side(OURS, context), Side(peer, context))
            for number in range(1, rounds + 1):
                for side in sides:
                    if not side.failed:
                        say(f"round {number} of {rounds}: {side.name}, {context:,} tokens")
                        _take_turn(side, folder, chunk, threads)
            _require_agreement(*sides)
            results.append(sides)
    return results


def _take_turn(side: Side, folder: Path, chunk: int, threads: int) -> None:
    arguments = [side.name, folder, side.context, chunk, threads]
    command = [sys.executable, "-m", "genoctx.run.bench_engine", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        side.failed = "killed, most likely for memory" if done.returncode < 0 else last
    else:
        side.turns.append(Turn(**json.loads(done.stdout)))


def _require_agreement(ours: Side, theirs: Side) -> None:
    if ours.failed:
        raise GenoctxError(f"our own step failed: {ours.failed}", "see genoctx doctor --selftest")
    for a, b in zip(ours.turns, theirs.turns, strict=False):
        loss, norm = abs(a.nats - b.nats), abs(a.grad_norm / b.grad_norm - 1)
        if loss > LOSS_LIMIT or norm > NORM_LIMIT:
            raise CheckFailed(
                f"the two disagree at {ours.context:,} tokens: loss by {loss:.1e} nats, gradient norm by "
                f"{norm:.1e}; figures of different computations are not compared",
                "see genoctx doctor --selftest, and tests/parity",
            )


def _tokens(context: int) -> tuple[Tensor, Tensor]:
    """Bases drawn at random, and the one that follows each."""
    import torch

    tokens = torch.randint(0, 4, (1, context), generator=torch.Generator().manual_seed(0))
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    return tokens, targets


def _our_step(folder: Path, chunk: int) -> Callable[[int], tuple[float, float]]:
    from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds
    from genoctx.engine.optimizer import AdamWSettings, Optimizer
    from genoctx.engine.stream import train_window
    from genoctx.model.weights import load_model

    model = load_model(folder)
    optimizer = Optimizer(model, AdamWSettings())

    def step(context: int) -> tuple[float, float]:
        batch = Batch(*_tokens(context), ("random",))
        per = Denominators.of([batch], model.config.index_kpool)
        optimizer.zero_grad()
        losses = train_window(model, batch, bounds(context, chunk), Coefficients(), per)
        return losses.nats / losses.weight, optimizer.grad_norm()

    return step


def _their_step(folder: Path, chunk: int) -> Callable[[int], tuple[float, float]]:
    del chunk  # they have none: the window is one piece
    from genoctx.run.peer_transformers import load_peer, peer_step

    model = load_peer(folder)
    return lambda context: peer_step(model, *_tokens(context))


def _whole_step(folder: Path, chunk: int) -> Callable[[int], tuple[float, float]]:
    del chunk  # the window is one piece
    from genoctx.engine.optimizer import AdamWSettings, Optimizer
    from genoctx.model.weights import load_model
    from genoctx.run.peer_whole import whole_step

    model = load_model(folder)
    optimizer = Optimizer(model, AdamWSettings())
    return lambda context: whole_step(model, optimizer, *_tokens(context))


_PREPARE: dict[str, Callable[[Path, int], Callable[[int], tuple[float, float]]]] = {
    OURS: _our_step,
    THEIRS: _their_step,
    WHOLE: _whole_step,
}


def _main(name: str, folder: str, context: str, chunk: str, threads: str) -> None:
    import torch

    from genoctx.engine.allocator import keep_freed_memory

    keep_freed_memory()  # for both: it is what makes theirs fast, too
    if int(threads):
        torch.set_num_threads(int(threads))
    try:
        step = _PREPARE[name](Path(folder), int(chunk))
    except GenoctxError as error:
        sys.exit(f"{error.message}: {error.hint}")
    step(min(_WARM_UP, int(context)))
    begin = time.perf_counter()
    nats, norm = step(int(context))
    turn = Turn(time.perf_counter() - begin, nats, norm, peak_resident_memory())
    print(json.dumps(asdict(turn)))


def engine_record(side: Side) -> dict[str, Any]:
    """JSON values of one side."""
    return {
        "name": side.name,
        "context": side.context,
        "failed": side.failed,
        "turns": [asdict(turn) for turn in side.turns],
    }


if __name__ == "__main__":
    _main(*sys.argv[1:])
