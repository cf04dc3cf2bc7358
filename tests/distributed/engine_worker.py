"""One of two ranks that run the cases of test_sharded_engine.py: ``engine_worker.py FOLDER RANK CASE...``.

A case is ``WORK:CP:EP:KEEP:DTYPE``. What was found is written to ``CASE.pt`` in FOLDER by the first rank.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pieces_worker import CONFIG
from torch import Tensor

from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.engine import Scored
from genoctx.engine.journal import Journal
from genoctx.engine.mesh import Layout, Mesh
from genoctx.engine.movement import Movement
from genoctx.engine.optimizer import AdamWSettings
from genoctx.engine.sharded import ShardedEngine, ShardedOptimizer, idle, rounds
from genoctx.engine.sharded_model import sharded_model
from genoctx.engine.sharding import whole_tensor
from genoctx.errors import GenoctxError, is_shared
from genoctx.model.block import Objectives
from genoctx.model.config import ModelConfig
from genoctx.run.data import open_data, windows_of
from genoctx.run.evaluate import evaluate

LENGTHS, CHUNK = (40, 24, 37), 12
COEFFICIENTS = Coefficients(0.01, 0.1)
SETTINGS = AdamWSettings()
SCORED_MODEL = replace(CONFIG, vocab_size=16)
ENDS = {1: (2, 10), 2: (12,)}
"""Chunks at which a step is ended, by cp: in either sweep of several windows, and at the very last one."""


class Stop(Exception):
    """A request that all ranks hear at the same chunk."""


class Killed(BaseException):
    """As sudden as SIGKILL: nothing is saved on the way out."""


def window(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    tokens = torch.randint(0, 4, (1, LENGTHS[index]), generator=generator)
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    return Batch(tokens, targets, (f"chr{index}",))


@dataclass
class Life:
    """One life of a rank: everything is made anew, but for what is on the disk."""

    folder: Path
    cp: int
    ep: int
    keep: bool
    dtype: torch.dtype
    every_seconds: float = 0.0
    config: ModelConfig = CONFIG

    def __post_init__(self) -> None:
        layout = Layout.of(dist.get_world_size(), cp=self.cp, ep=self.ep, experts=4)
        self.mesh, self.chunks = Mesh(layout), 0
        self.sharded = sharded_model(
            self.config,
            self.mesh,
            dtype=self.dtype,
            device="cpu",
            keep=self.keep,
            objectives=Objectives(True, "sparse"),
            seed=0,
        )
        self.optimizer = ShardedOptimizer(self.sharded, SETTINGS)
        self.said: list[str] = []
        self.journal = Journal(self.own, self.every_seconds, self.said.append)
        self.engine = ShardedEngine(
            self.sharded.model, CHUNK, COEFFICIENTS, journal=self.journal, sharded=self.sharded
        )

    @property
    def own(self) -> Path:
        return self.folder / f"rank-{dist.get_rank()}"

    def batches(self) -> list[Batch]:
        mine = []
        for chunks, taken in rounds(LENGTHS, self.mesh.layout.dp, CHUNK):
            index = taken[self.mesh.dp_rank]
            mine.append(idle(chunks, self.cp) if index is None else window(index))
        return mine

    def step(self, end: int = 0, kind: type[BaseException] = Stop) -> dict[str, Any]:
        """Weights and losses after a step that is ended at chunk ``end`` of this life."""

        def on_chunk(tokens: int, sweep: str) -> None:
            self.chunks += 1
            if self.chunks == end:
                raise kind

        done = self.engine.train_step(self.batches(), self.optimizer, 1e-2, on_chunk, key="k")
        weights = {name: whole_tensor(self.sharded, name).clone() for name, _ in self.sharded.parts()}
        return {**weights, "losses": done.losses, "norm": done.grad_norm}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[key], b[key]) if isinstance(a[key], Tensor) else a[key] == b[key] for key in a
    )


def journal(*args: Any) -> dict[str, Any]:
    """Ended anywhere, a step goes on where it stood on all ranks, and ends with the same bits."""
    folder: Path = args[0]
    first = Life(*args)
    undisturbed, found = first.step(), {"chunks": first.chunks}
    for end in ENDS[args[1]]:
        shutil.rmtree(first.own, ignore_errors=True)
        _ended(Life(*args), end, Stop)
        again = Life(*args)
        found[f"stopped at {end}"] = same(again.step(), undisturbed), first.chunks - again.chunks - end
    for name, change in {"apart": _one_entry_back, "lost": _nothing_left}.items():
        shutil.rmtree(first.own, ignore_errors=True)
        end = first.chunks - 2
        _ended(Life(*args, every_seconds=1e-9), end, Killed)
        if dist.get_rank() == 1:
            os.chdir(first.own)
            change()
            os.chdir(folder)
        dist.barrier()
        again = Life(*args)
        found[name] = same(again.step(), undisturbed), first.chunks - again.chunks
        found["left"] = [path.name for path in folder.glob("rank-*")]
    return found


def _ended(life: Life, end: int, kind: type[BaseException]) -> None:
    try:
        life.step(end, kind)
    except kind:
        return
    raise AssertionError(f"the step was not ended at chunk {end}")


def _one_entry_back() -> None:
    """A rank that was killed before its last entry was in place."""
    os.replace("sums-before.safetensors", "sums.safetensors")


def _nothing_left() -> None:
    """A rank whose disk is gone."""
    shutil.rmtree(Path.cwd())
    os.chdir("/")


def movement(*args: Any) -> dict[str, Any]:
    """What stands still after a step at a rate that rounding swallows, and at one that it does not."""
    found: dict[str, Any] = {}
    for rate in (1e-10, 1e-2):
        life, watch = Life(*args), Movement()
        life.engine.train_step(life.batches(), life.optimizer, rate, movement=watch)
        still: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(still, watch.still)
        assert still[0] == still[1]
        found[str(rate)] = watch.still
    return found


def scoring(*args: Any) -> dict[str, Any]:
    """Windows of three lengths, chunk by chunk, and a whole evaluation."""
    folder: Path = args[0]
    life = Life(*args)
    tokens: list[int] = []

    def note(count: int, sweep: str) -> None:
        tokens.append(count)

    parts: list[tuple[int, Scored]] = list(life.engine.score_all(LENGTHS, window, torch.arange(4), 1, note))
    counts: list[Any] = [None] * 2
    dist.all_gather_object(counts, tokens)
    scored = Life(*args, config=SCORED_MODEL)
    data = open_data(folder / "store", folder / "windows.bed", SCORED_MODEL)
    out, windows = folder / f"eval-{args[1]}", windows_of(data, "holdout")
    evaluate(
        scored.sharded.model,
        data,
        windows,
        chunk=CHUNK,
        step=3,
        out=out,
        monitor=Quiet(),
        engine=replace(scored.engine, chunk=200),
    )
    return {"parts": parts, "tokens": counts, "out": str(out)}


def refused(*args: Any) -> list[Any]:
    """Faults of one rank's window, and of what the first rank makes of the scores: every rank ends."""
    life = Life(*args)

    def unreadable(index: int) -> Batch:
        raise GenoctxError(f"window {index} cannot be read", "look")

    def told(action: Callable[[], object]) -> list[Any]:
        try:
            action()
            mine: Any = None
        except GenoctxError as error:
            mine = (type(error).__name__, error.message, is_shared(error))
        said: list[Any] = [None] * 2
        dist.all_gather_object(said, mine)
        return said

    def bad_account() -> None:
        from contextlib import closing

        with closing(life.engine.score_all(LENGTHS, window, torch.arange(4))) as parts:
            for _ in parts:
                raise GenoctxError("these scores are not right", "")

    empty = [replace(b, targets_BT=torch.full_like(b.targets_BT, -100)) for b in life.batches()]
    mine = empty if dist.get_rank() == 1 else life.batches()
    broken = [replace(b, share_BT=torch.full(b.tokens_BT.shape, torch.inf)) for b in life.batches()]
    return [
        told(lambda: list(life.engine.score_all(LENGTHS, unreadable, torch.arange(4)))),
        told(bad_account),
        told(lambda: life.engine.train_step(mine, life.optimizer, 1e-2)),
        told(lambda: life.engine.train_step(broken, life.optimizer, 1e-2)),
        told(lambda: life.engine.train_step(life.batches(), life.optimizer, 1e-2)),
    ]


class Quiet:
    """A Monitor that says nothing."""

    def info(self, text: str = "", *, level: int = 0) -> None:
        del text, level

    def progress(self, label: str, total: float | None, unit: str) -> Quiet:
        del label, total, unit
        return self

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def advance(self, n: float = 1) -> None:
        del n


WORK: dict[str, Callable[..., Any]] = {
    "journal": journal,
    "movement": movement,
    "scoring": scoring,
    "refused": refused,
}


def main(folder: Path, rank: int, cases: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=240),
    )
    for case in cases:
        work, cp, ep, keep, dtype = case.split(":")
        found = WORK[work](folder, int(cp), int(ep), keep == "keep", getattr(torch, dtype))
        if rank == 0:
            torch.save(found, folder / f"{case}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
