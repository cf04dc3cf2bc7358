"""``genoctx bench homes``: what it costs a step on this processor that things lie in mapped files.

Everything in memory, everything in files, and each category alone take turns, each turn in a process of its
own, so that memory is its own too. A turn is two steps: a short one to warm up, and the measured one. After
both, weights and moments must be the same to the last bit, or no figure is given. One turn more takes the
pages that the step is done with out of memory, too (genoctx/run/forgetful.py), so that what comes back is
read from the disk, while the chunk before it is computed.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genoctx.errors import CheckFailed, GenoctxError
from genoctx.run.machine import anonymous_memory, peak_resident_memory
from genoctx.run.plan_layout import MOVABLE

if TYPE_CHECKING:
    from genoctx.engine.homes import Homes

MEMORY, FILES, FORGOTTEN = "memory", "files", "files, forgotten"
LIMIT = 1.10
"""Most that everything in files may take of the time that everything in memory takes."""

_WARM_UP = 512


@dataclass(frozen=True)
class Turn:
    """One measured step."""

    seconds: float
    peak_bytes: int
    """Resident, mapped pages included; the kernel may take those back."""
    anonymous_bytes: int
    """The most after any chunk that is not a page of a file."""
    digest: str
    """Of weights and moments."""


@dataclass
class Variant:
    """All turns with one choice of homes."""

    name: str
    turns: list[Turn] = field(default_factory=list)

    def ratios(self, base: Variant) -> list[float]:
        """Seconds over those of ``base``, round by round."""
        return [a.seconds / b.seconds for a, b in zip(self.turns, base.turns, strict=True)]

    def ratio(self, base: Variant) -> float:
        """Their median."""
        return statistics.median(self.ratios(base))


def variants(single: bool) -> list[Variant]:
    """Everything in memory first; with ``single`` each category in files alone, too."""
    alone = MOVABLE if single else ()
    return [Variant(name) for name in (MEMORY, FILES, FORGOTTEN, *alone)]


def run_homes(
    preset: str,
    context: int,
    chunk: int,
    threads: int,
    rounds: int,
    folder: Path,
    say: Callable[[str], None],
    *,
    single: bool = True,
) -> list[Variant]:
    """Measure; the files in ``folder`` have no names, so that nothing stays there, however this ends.

    CheckFailed where two homes do not give the same bits; GenoctxError where a turn dies.
    """
    found = variants(single)
    for number in range(1, rounds + 1):
        for variant in found:
            say(f"round {number} of {rounds}: {variant.name}")
            variant.turns.append(_take_turn(variant.name, preset, context, chunk, threads, folder))
            _require_same(variant, found[0])
    return found


def _take_turn(name: str, preset: str, context: int, chunk: int, threads: int, folder: Path) -> Turn:
    command = [sys.executable, "-m", "genoctx.run.bench_homes", name, preset, str(context), str(chunk)]
    done = subprocess.run([*command, str(threads), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise GenoctxError(
            f"the step with homes {name!r} ended: {last}", "give a smaller --contexts or --chunk"
        )
    return Turn(**json.loads(done.stdout))


def _require_same(variant: Variant, base: Variant) -> None:
    if variant.turns[-1].digest != base.turns[0].digest:
        raise CheckFailed(
            f"homes {variant.name!r} give other weights than memory; different computations are not compared",
            "see tests/engine/test_homes.py, and genoctx doctor --selftest",
        )


def homes_of(name: str, folder: Path) -> Homes:
    """The homes of a variant on this processor."""
    import torch

    from genoctx.engine.homes import Homes
    from genoctx.run.forgetful import Forgetful

    cpu = torch.device("cpu")
    if name == FORGOTTEN:
        return Homes(dict.fromkeys(MOVABLE, Forgetful(folder)))
    away: Sequence[str] = {MEMORY: (), FILES: MOVABLE}.get(name, (name,))
    return Homes.of(dict.fromkeys(away, "file"), cpu, folder)


def measure_step(homes: Homes, preset: str, context: int, chunk: int) -> Turn:
    """A short step, and a full one that is measured, in this process."""
    import torch

    from genoctx.config import preset_model
    from genoctx.engine.batch import Batch
    from genoctx.engine.engine import Engine
    from genoctx.engine.optimizer import AdamWSettings, Optimizer
    from genoctx.model.hybrid import build

    model = build(preset_model(preset), seed=0)
    optimizer = Optimizer(model, AdamWSettings(), homes)
    engine = Engine(model, chunk, homes=homes)
    anonymous = 0

    def step(length: int) -> float:
        tokens = torch.randint(0, 4, (1, length + 1), generator=torch.Generator().manual_seed(length))
        begin = time.perf_counter()
        engine.train_step([Batch(tokens[:, :-1], tokens[:, 1:], ("random",))], optimizer, 1e-3, on_chunk)
        return time.perf_counter() - begin

    def on_chunk(tokens: int, sweep: str) -> None:
        nonlocal anonymous
        anonymous = max(anonymous, anonymous_memory())

    step(min(_WARM_UP, context))
    seconds = step(context)
    digest = hashlib.sha256()
    for tensor in (*model.state_dict().values(), *(t for _, t in optimizer.state())):
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return Turn(seconds, peak_resident_memory(), anonymous, digest.hexdigest())


def _main(name: str, preset: str, context: str, chunk: str, threads: str, folder: str) -> None:
    import torch

    from genoctx.engine.allocator import keep_freed_memory

    keep_freed_memory()
    if int(threads):
        torch.set_num_threads(int(threads))
    try:
        turn = measure_step(homes_of(name, Path(folder)), preset, int(context), int(chunk))
    except GenoctxError as error:
        sys.exit(f"{error.message}: {error.hint}")
    print(json.dumps(asdict(turn)))


def homes_record(variant: Variant, base: Variant) -> dict[str, Any]:
    """JSON values of one variant."""
    return {
        "homes": variant.name,
        "ratio": variant.ratio(base),
        "ratios": variant.ratios(base),
        "turns": [asdict(turn) for turn in variant.turns],
    }


if __name__ == "__main__":
    _main(*sys.argv[1:])
