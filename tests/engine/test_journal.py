"""An unfinished window goes on where it was interrupted, and ends with the very bits of one that was not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from test_homes import CHUNK, batch, model

from genoctx.engine.agreement import START, Alone, Place, Ranks
from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.engine import Engine
from genoctx.engine.journal import Journal
from genoctx.engine.mesh import Mesh
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.errors import GenoctxError

BATCHES = [batch(seed=1), batch(1, 130, seed=2)]
CHUNKS = 2 * 5 - 1 + 2 * 3 - 1
"""Of both sweeps over both micro-batches; a window's last chunk has one sweep."""


class Stop(Exception):
    """Somebody asks in the middle of a window."""


class Killed(BaseException):
    """As sudden as SIGKILL: nothing is saved on the way out."""


class Run:
    """One process's life: everything is made anew, but for what is on the disk."""

    def __init__(self, folder: Path, every_seconds: float = 0.0, ranks: Alone | None = None) -> None:
        self.warnings: list[str] = []
        self.model = model()
        self.optimizer = Optimizer(self.model, AdamWSettings())
        self.journal = Journal(folder, every_seconds, self.warnings.append)
        self.journal.ranks = ranks or self.journal.ranks
        self.engine = Engine(self.model, CHUNK, Coefficients(0.01, 0.1), journal=self.journal)
        self.chunks = 0

    def step(
        self, end: int = 0, kind: type[BaseException] = Stop, key: str = "k", batches: list[Batch] = BATCHES
    ) -> list[object]:
        """Weights and losses after a step that is ended at chunk ``end`` of this life."""

        def on_chunk(tokens: int, sweep: str) -> None:
            self.chunks += 1
            if self.chunks == end:
                raise kind

        done = self.engine.train_step(batches, self.optimizer, 1e-2, on_chunk, key=key)
        weights = [p.detach().clone() for p in self.model.parameters()]
        return [*weights, done.losses, done.grad_norm]


def same(a: list[object], b: list[object]) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    run = Run(tmp_path_factory.mktemp("run") / "window")
    result = run.step()
    assert run.chunks == CHUNKS
    return result


@pytest.mark.parametrize("end", range(1, CHUNKS + 1))
def test_stopped_at_any_chunk_only_the_rest_is_done(
    end: int, undisturbed: list[object], tmp_path: Path
) -> None:
    folder = tmp_path / "window"
    with pytest.raises(Stop):
        Run(folder).step(end)
    again = Run(folder)
    assert same(again.step(), undisturbed)
    assert again.chunks == CHUNKS - end, "a finished chunk is not done twice"
    assert not folder.exists(), "a finished step leaves nothing behind"


@pytest.mark.parametrize("ends", [(3, 2, 4), (1, 1, 1, 1, 1), (6, 5), (2, 9)])
def test_killed_again_and_again(ends: tuple[int, ...], undisturbed: list[object], tmp_path: Path) -> None:
    """With an entry after every chunk but the one that dies."""
    folder = tmp_path / "window"
    for end in ends:
        with pytest.raises(Killed):
            Run(folder, every_seconds=1e-9).step(end, Killed)
    assert same(Run(folder, every_seconds=1e-9).step(), undisturbed)


class Two(Alone):
    """This rank, and another that has kept other places."""

    generations = 2

    def __init__(self, *others: Place) -> None:
        self.others = {START, *others}

    def common(self, places: set[Place]) -> Place:
        return max(places & self.others)


def test_an_entry_that_another_rank_has_not_made_is_forgotten(
    undisturbed: list[object], tmp_path: Path
) -> None:
    """The entries that follow begin at another chunk, and the chain of them stays whole."""
    folder, forward = tmp_path / "window", [Place(0, False, chunks) for chunks in range(6)]
    for end, others in ((1, []), (2, forward[:2]), (1, forward[:2]), (4, forward[:3])):
        with pytest.raises(Stop):
            Run(folder, ranks=Two(*others)).step(end)
    everything = {Place(0, True, -left) for left in range(6)}
    again = Run(folder, ranks=Two(*forward, *everything))
    assert same(again.step(), undisturbed) and again.chunks == CHUNKS - 6


def test_a_finished_step_leaves_nothing_of_other_numbers_of_ranks(tmp_path: Path) -> None:
    """Their entries stand on weights that these ranks have not made."""
    here = {"layout": SimpleNamespace(world=2), "first": True}
    window, mesh = tmp_path / "window", cast(Mesh, SimpleNamespace(**here))
    for name in ("rank-0", "rank-1", "rank-2", "rank-10"):
        (window / name).mkdir(parents=True)
    for name in ("sums.safetensors", "batch-0000-chunks-000000-000016.safetensors", "note.txt"):
        (window / name).write_text("")
    journal = Journal(window / "rank-0", 0.0, print)
    journal.ranks = Ranks(mesh)
    journal.discard()
    assert sorted(p.name for p in window.iterdir()) == ["note.txt", "rank-1"]


def test_entries_of_another_step_are_not_taken_up(undisturbed: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "window"
    with pytest.raises(Stop):
        Run(folder).step(6, key="another", batches=[batch(seed=5), batch(1, 130, seed=6)])
    assert same(Run(folder).step(), undisturbed)


def test_without_an_entry_the_step_starts_over(undisturbed: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "window"
    with pytest.raises(Killed):
        Run(folder).step(7, Killed)
    again = Run(folder)
    assert same(again.step(), undisturbed) and again.chunks == CHUNKS


@pytest.mark.parametrize("keep", [0, 10, 1000])
def test_a_broken_entry_is_named_or_done_again(keep: int, undisturbed: list[object], tmp_path: Path) -> None:
    """Files that were cut short by something else than this program."""
    folder = tmp_path / "window"
    with pytest.raises(Stop):
        Run(folder).step(7)
    for path in folder.glob("batch-*"):
        path.write_bytes(path.read_bytes()[:keep])
    run = Run(folder)
    try:
        assert same(run.step(), undisturbed)
    except GenoctxError as error:
        assert str(folder) in error.message and "remove" in error.hint


def test_a_disk_that_takes_no_entry_is_said_once_and_harms_nothing(
    undisturbed: list[object], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder can be made here")
    run = Run(blocked, every_seconds=1e-9)
    assert same(run.step(), undisturbed)
    assert len(run.warnings) == 1 and "cannot keep the unfinished window" in run.warnings[0]
    assert blocked.read_text().startswith("no folder")
