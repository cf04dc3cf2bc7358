"""What an engine does beside training, on 2 gloo ranks: unfinished steps, the movement check, held-out scores."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_worker import CHUNK, COEFFICIENTS, CONFIG, LENGTHS, SCORED_MODEL, SETTINGS, Quiet, window
from tiny_run import make_data

from genoctx.engine.engine import Engine
from genoctx.engine.movement import Movement
from genoctx.engine.optimizer import Optimizer
from genoctx.model.block import Objectives
from genoctx.model.hybrid import build
from genoctx.report.ledger import Ledger
from genoctx.run.data import open_data, windows_of
from genoctx.run.evaluate import evaluate

WORKER = Path(__file__).with_name("engine_worker.py")
JOURNALS = ("journal:1:2:keep:bfloat16", "journal:2:1:layer:float32")
MOVEMENT = "movement:1:2:layer:float32"
SCORING = ("scoring:1:2:keep:float64", "scoring:2:1:layer:float64")
REFUSED = "refused:1:1:keep:float32"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks have left everything, beside a genome of windows of two lengths."""
    folder = tmp_path_factory.mktemp("engines")
    bases = "".join(random.Random(6).choices("ACGTN", [9, 9, 9, 9, 1], k=5 * 512))
    (folder / "held.fa").write_text(f">held\n{bases}\n>rest\n{bases[::-1]}\n")
    make_data(folder, folder / "held.fa", context=512, holdout="held", max_n=1.0)
    command = [sys.executable, str(WORKER), str(folder)]
    cases = (*JOURNALS, MOVEMENT, *SCORING, REFUSED)
    ranks = [
        subprocess.Popen([*command, str(rank), *cases], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=280)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "\n".join(said)
    return folder


def found(folder: Path, case: str) -> Any:
    return torch.load(folder / f"{case}.pt", weights_only=False)


@pytest.mark.parametrize("case", JOURNALS)
def test_an_unfinished_step_goes_on_where_all_ranks_stood(ran: Path, case: str) -> None:
    told = found(ran, case)
    for what in (name for name in told if name.startswith("stopped")):
        assert told[what] == (True, 0), f"{what}: the bits are the same, and no finished chunk is done twice"
    assert told["apart"] == (True, told["chunks"] - 3), "all go back to the entry that all have"
    assert told["lost"] == (True, 0), "without the entries of one rank the step starts over"
    assert told["left"] == []


@pytest.mark.parametrize("rate", [1e-10, 1e-2])
def test_what_stands_still_is_what_stands_still_in_one_process(ran: Path, rate: float) -> None:
    model = build(CONFIG, objectives=Objectives(True, "sparse"), seed=0)
    watch = Movement()
    batches = [window(index) for index in range(len(LENGTHS))]
    optimizer = Optimizer(model, SETTINGS)
    Engine(model, CHUNK, COEFFICIENTS).train_step(batches, optimizer, rate, movement=watch)
    told = found(ran, MOVEMENT)[str(rate)]
    assert told.keys() == watch.still.keys()
    assert (len(told) > 10) == (rate < 1e-5), (
        "a step at the lower rate is lost beside every weight of its size"
    )
    for name, why in told.items():
        assert why.split(" beside ")[0] == watch.still[name].split(" beside ")[0], name


@pytest.mark.parametrize("case", SCORING)
def test_windows_are_scored_as_by_one_process(ran: Path, case: str) -> None:
    model = build(CONFIG, dtype=torch.float64, objectives=Objectives(True, "sparse"), seed=0)
    wanted = dict.fromkeys(range(len(LENGTHS)))
    for number in wanted:
        parts = [part.nats for part in Engine(model, CHUNK).score(window(number), torch.arange(4))]
        wanted[number] = [torch.cat(values, 1) for values in zip(*parts, strict=True)]
    told, seen = found(ran, case), []
    for number, part in told["parts"]:
        if number not in seen:
            assert part.start == 0
            seen.append(number)
        assert number == seen[-1], "windows come one after another"
        for mine, theirs in zip(part.nats, wanted[number], strict=True):
            cut = theirs[:, part.start : part.end]
            assert mine.shape == cut.shape and (mine - cut).abs().max() <= (
                1e-10 if mine.dtype == torch.float64 else 1e-6
            )
        if part.end == LENGTHS[number]:
            end = number
    assert sorted(seen) == [0, 1, 2] and end == seen[-1]
    assert sum(part.end - part.start for _, part in told["parts"]) == sum(LENGTHS)
    first, second = told["tokens"]
    assert len(first) == len(second), "every rank is told of every chunk"
    assert sum(first) == sum(LENGTHS) and not any(second), "and the first one of everybody's tokens"


@pytest.mark.parametrize("case", SCORING)
def test_the_ledger_of_ranks_is_that_of_one_process(ran: Path, case: str) -> None:
    data = open_data(ran / "store", ran / "windows.bed", SCORED_MODEL)
    model = build(SCORED_MODEL, dtype=torch.float64, objectives=Objectives(True, "sparse"), seed=0)
    windows = windows_of(data, "holdout")
    one = evaluate(model, data, windows, chunk=200, step=3, out=ran / "one", monitor=Quiet()).ledger  # type: ignore[arg-type]
    out = Path(found(ran, case)["out"])
    many = Ledger.load(out / "ledger.npz")
    assert {path.name for path in out.iterdir()} == {"ledger.npz", "summary.json"}
    changing = ("created", "command")
    assert {k: v for k, v in one.header.items() if k not in changing} == {
        k: v for k, v in many.header.items() if k not in changing
    }
    assert one.excluded == many.excluded and len(one.windows) == 5
    for column in ("windows", "contig", "window", "block_start", "count"):
        assert np.array_equal(getattr(one, column), getattr(many, column)), column
    for column in ("nats_full_sum", "nats_acgt_sum"):
        left, right = getattr(one, column), getattr(many, column)
        assert np.abs(left - right).max() <= 1e-10 * np.abs(left).max(), column


def test_an_error_of_one_rank_ends_all_of_them(ran: Path) -> None:
    unreadable, account, empty, infinite, after = found(ran, REFUSED)
    assert unreadable[0] == unreadable[1] == ("GenoctxError", "window 0 cannot be read", True)
    assert account[0] == ("GenoctxError", "these scores are not right", False)
    assert account[1][0] == "LostContact"
    assert empty[0] == empty[1] and empty[0][0] == "InputError" and "no base to predict" in empty[0][1]
    assert infinite[0] == infinite[1] and infinite[0][2] and "chr0, chr1, chr2" in infinite[0][1]
    assert after == [None, None], "the weights were left alone, and the next step is taken"
