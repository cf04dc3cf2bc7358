"""200 steps with evaluations and exceptions between: ``flat_memory.py FOLDER`` prints the most bytes resident after
40 steps, and after all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from genoctx.config import preset_model
from genoctx.engine.batch import Batch
from genoctx.engine.engine import Engine
from genoctx.engine.homes import Homes
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.model.hybrid import build
from genoctx.run.machine import peak_resident_memory


class Stop(Exception):
    """Somebody asks in the middle of a window."""


def main(folder: Path) -> None:
    made = build(preset_model("micro"), seed=0)
    homes = Homes.of({"carries": "file", "latents": "file"}, torch.device("cpu"), folder)
    optimizer, engine = Optimizer(made, AdamWSettings(), homes), Engine(made, 32, homes=homes)
    ids, calls = torch.randint(0, 4, (1, 64), generator=torch.Generator().manual_seed(0)), 0
    small = Batch(ids, torch.roll(ids, -1, 1), ("random",))

    def sometimes(tokens: int, sweep: str) -> None:
        nonlocal calls
        del tokens, sweep
        calls += 1
        if calls % 7 == 0:
            raise Stop

    for step in range(200):
        try:
            engine.train_step([small], optimizer, 1e-3, sometimes)
        except Stop:
            assert all(p.grad is None for p in made.parameters())
        if step % 10 == 0:
            list(engine.score(small, torch.arange(4)))
        if step in (40, 199):
            print(peak_resident_memory())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
