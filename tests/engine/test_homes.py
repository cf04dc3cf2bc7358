"""Homes change where bytes are, never a bit; what they hold is what was counted before; a full disk is a message."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients, bounds
from genoctx.engine.bytes import CATEGORIES, WINDOW, window_bytes
from genoctx.engine.engine import Engine
from genoctx.engine.homes import Homes, InPlace
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.pinned import Arrival
from genoctx.engine.stream import forward_sweep
from genoctx.engine.tape import Tape
from genoctx.errors import GenoctxError
from genoctx.model.block import Objectives
from genoctx.model.hybrid import Hybrid, build

CPU = torch.device("cpu")
CHUNK = 48


def model(dtype: torch.dtype = torch.float32) -> Hybrid:
    return build(
        preset_model("micro"), dtype=dtype, objectives=Objectives(balance=True, kl_mode="sparse"), seed=0
    )


def batch(rows: int = 2, length: int = 200, seed: int = 0) -> Batch:
    ids = torch.randint(0, 4, (rows, length), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, torch.roll(ids, -1, 1), tuple(f"row {i}" for i in range(rows)))


def train(homes: Homes | None, dtype: torch.dtype = torch.float32, steps: int = 2) -> dict[str, Any]:
    """Weights, moments and losses after some steps."""
    made = model(dtype)
    optimizer = Optimizer(made, AdamWSettings(), homes)
    engine = Engine(made, CHUNK, Coefficients(0.01, 0.1), homes=homes)
    losses = [
        engine.train_step([batch(seed=i), batch(1, 130, seed=9)], optimizer, 1e-2).losses
        for i in range(steps)
    ]
    state = {name: t.clone() for name, t in optimizer.state()}
    return {"losses": losses, **state, **{n: p.detach().clone() for n, p in made.named_parameters()}}


COMBINATIONS = [
    *[(name,) for name in CATEGORIES],
    ("carries", "ids"),
    ("latents", "d_latents"),
    ("parameters", "moments"),
    CATEGORIES,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("away", COMBINATIONS, ids="+".join)
def test_every_combination_gives_the_same_bits(
    away: tuple[str, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    plain = train(None, dtype)
    mapped = train(Homes.of(dict.fromkeys(away, "file"), CPU, tmp_path), dtype)
    assert plain.keys() == mapped.keys()
    for name, value in plain.items():
        same = torch.equal(value, mapped[name]) if isinstance(value, torch.Tensor) else value == mapped[name]
        assert same, name
    assert list(tmp_path.iterdir()) == [], "a mapped file has no name"


class Away(InPlace):
    """A home apart, as beside a GPU: what comes from it is a copy, and what is kept in it is copied back."""

    moves = True
    apart = True

    def __init__(self) -> None:
        super().__init__(CPU)
        self.here = self.most = 0

    def send_for(self, places: Sequence[torch.Tensor]) -> Arrival:
        self.here += len(places)
        self.most = max(self.most, self.here)
        copies = [place.clone() for place in places]
        for place in places:
            place.fill_(float("nan"))  # whoever computes with what is there is found out
        return lambda: copies

    def store(self, place: torch.Tensor, tensor: torch.Tensor) -> None:
        self.here -= 1
        place.copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_come_to_the_masters_two_layers_at_a_time(dtype: torch.dtype) -> None:
    away = Away()
    plain, moved = train(None, dtype), train(Homes(Homes.on(CPU).by_category | {"moments": away}), dtype)
    assert plain.keys() == moved.keys()
    assert all(torch.equal(v, moved[n]) for n, v in plain.items() if isinstance(v, torch.Tensor))
    names = [n for n, _ in model().named_parameters() if n.startswith("layers.")]
    assert away.here == 0 and 0 < away.most <= 2 * 2 * max(Counter(n.split(".")[1] for n in names).values())


@pytest.mark.parametrize(("rows", "length", "chunk"), [(1, 200, 48), (2, 129, 64), (1, 31, 7), (3, 40, 40)])
def test_a_window_holds_exactly_the_bytes_of_the_closed_form(rows: int, length: int, chunk: int) -> None:
    made, limits = model(), bounds(length, chunk)
    tape = Tape.open(made, rows, limits, indexer_kl=True)
    forward_sweep(made, batch(rows, length), limits, tape=tape)
    expected = window_bytes(made.config, length, rows, chunk, indexer_kl=True)
    assert tape.held() == expected and set(expected) == set(WINDOW)


def a_disk_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files larger than ``size`` bytes, or that all together are, have no room from now on."""
    taken = 0

    def reserve(handle: int, offset: int, nbytes: int) -> None:
        nonlocal taken
        if taken + nbytes > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken += nbytes

    monkeypatch.setattr(os, "posix_fallocate", reserve)


def test_a_full_disk_is_an_error_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_disk_of(0, monkeypatch)
    homes, made = Homes.of({"latents": "file"}, CPU, tmp_path), model()
    before = {n: p.detach().clone() for n, p in made.named_parameters()}
    engine = Engine(made, CHUNK, homes=homes)
    seen: list[str] = []
    with pytest.raises(GenoctxError, match="has no room for"):
        engine.train_step(
            [batch()], Optimizer(made, AdamWSettings()), 1e-2, lambda tokens, sweep: seen.append(sweep)
        )
    assert seen == [] and all(torch.equal(p, before[n]) for n, p in made.named_parameters())


@pytest.mark.parametrize("category", ["moments", "parameters"])
def test_an_optimizer_says_at_once_what_it_would_need(
    category: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both averages, or weights and gradient sums, as one number; the disk could hold any one tensor."""
    made, homes = model(), Homes.of({category: "file"}, CPU, tmp_path)
    needed = 2 * sum(p.nbytes for p in made.parameters() if p.requires_grad)
    a_disk_of(needed - 1, monkeypatch)
    with pytest.raises(
        GenoctxError, match=f"has no room for {needed:,} bytes of mapped homes, [0-9,]+ are free"
    ) as no:
        Optimizer(made, AdamWSettings(), homes)
    assert str(tmp_path) in no.value.message


def test_the_longest_window_is_tried_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes, made = Homes.of({"latents": "file", "ids": "file"}, CPU, tmp_path), model()
    engine = Engine(made, CHUNK, homes=homes)
    held = window_bytes(made.config, 200, 2, CHUNK)
    needed = held["latents"] + held["ids"]
    a_disk_of(needed, monkeypatch)
    engine.require_room(200, 2)
    a_disk_of(needed - 1, monkeypatch)
    with pytest.raises(GenoctxError, match=f"no room for {needed:,} bytes"):
        engine.require_room(200, 2)
    assert list(tmp_path.iterdir()) == []


def test_moments_come_back_into_the_files_they_have(tmp_path: Path) -> None:
    made, homes = model(), Homes.of({"moments": "file"}, CPU, tmp_path)
    optimizer, engine = Optimizer(made, AdamWSettings(), homes), Engine(made, CHUNK, Coefficients(0.01, 0.1))
    engine.train_step([batch()], optimizer, 1e-2)
    saved = {name: t.clone() for name, t in optimizer.state()}
    places = {name: t.data_ptr() for name, t in optimizer.state() if t.ndim}
    engine.train_step([batch(seed=1)], optimizer, 1e-2)
    optimizer.load_state(saved)
    assert all(torch.equal(saved[name], t) for name, t in optimizer.state())
    assert places == {name: t.data_ptr() for name, t in optimizer.state() if t.ndim}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    homes = Homes.of({"carries": "file"}, CPU, tmp_path / "none")
    with pytest.raises(GenoctxError, match="cannot make a file in"):
        Tape.open(model(), 1, bounds(100, 30), homes)


def test_many_steps_with_evaluations_and_exceptions_leave_memory_flat(tmp_path: Path) -> None:
    """200 steps; the most memory ever held after the first 40 grows by less than 8 MiB."""
    worker = Path(__file__).with_name("flat_memory.py")  # in a process whose peak no other test has raised
    done = subprocess.run(
        [sys.executable, str(worker), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    assert late - early < 8 << 20
