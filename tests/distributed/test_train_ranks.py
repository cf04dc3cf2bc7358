"""``genoctx train --nproc 2`` through the command line: equal to one process, and hard to hurt.

One run is interrupted in every way there is and taken up again; it ends with the bits of one that was not.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_run import Data, make_data, metrics, run

from genoctx.engine.checkpoint import read_checkpoint
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.report.ledger import Ledger
from genoctx.run.rundir import checkpoint_step, latest_checkpoint
from genoctx.run.trainer import build_model

STEPS = 3
SETTINGS = (
    f"train.steps={STEPS}",
    "train.context=1024",  # pieces of 1,024 bases: two chunks
    "train.windows_per_step=3",  # over two ranks: one of them is idle for a round
    "stream.chunk=600",
    "stream.dtype=float64",
    "checkpoint.every_steps=1",
    "eval.at_start=false",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> Data:
    folder = tmp_path_factory.mktemp("ranks")
    return make_data(folder, genomes / "lambda_phage.fa.gz", context=2048, holdout="0.2")


HOOKS = Path(__file__).with_name("hooks")


def outside_of_ranks() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}


def killed_at(event: int, rank: int) -> dict[str, str]:
    """The environment in which ``rank`` is killed at its ``event``-th file, the first time that it is started."""
    path = os.pathsep.join([str(HOOKS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return {"PYTHONPATH": path.rstrip(os.pathsep), "KILL_AT": str(event), "KILL_RANK": str(rank)}


class Run:
    """A run directory, and the command that trains in it."""

    def __init__(self, data: Data, folder: Path, *settings: str) -> None:
        self.out, config = folder / "run", folder / "run.toml"
        config.write_text(data.toml())
        self.command = [sys.executable, "-m", "genoctx", "train", str(config), "-o", str(self.out)]
        self.command += [part for text in (*SETTINGS, *settings) for part in ("--set", text)]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, "--nproc", "2", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=outside_of_ranks() | environment,
        )

    def finish(self, *arguments: str) -> tuple[str, str]:
        """Run to the end; stdout and stderr."""
        process = self.start(*arguments)
        said = process.communicate(timeout=300)
        assert process.returncode == 0, said[1]
        return said

    def hurt(self, number: signal.Signals, *, rank: int | None, after: int = 0) -> tuple[int, str]:
        """Send a signal to a rank or the launcher in the middle of a step, ``after`` some; exit code and stderr."""
        shutil.rmtree(self.out / "ranks", ignore_errors=True)  # reports of ranks that are gone already
        process = self.start()
        while not self.is_sweeping(after) and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, process.communicate()[1]
        os.kill(process.pid if rank is None else int(self.report(rank)["process"]), number)
        said = process.communicate(timeout=300)[1]
        return process.returncode, said

    def die_at(self, event: int, rank: int) -> tuple[int, str]:
        """A life in which a rank is killed at its ``event``-th file; exit code and stderr."""
        process = self.start(**killed_at(event, rank))
        said = process.communicate(timeout=300)[1]
        return process.returncode, said

    def under_torchrun(self, restarts: int, **environment: str) -> subprocess.CompletedProcess[str]:
        """Two ranks that torchrun starts, and starts again when one dies."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return subprocess.run(
            [*torchrun, "--max-restarts", str(restarts), *self.command[1:]],
            capture_output=True,
            text=True,
            timeout=300,
            env=outside_of_ranks() | environment,
            check=False,
        )

    def is_sweeping(self, after: int) -> bool:
        """Whether the ranks are between two chunks of a step, and ``after`` steps are done."""
        path = self.out / "metrics.jsonl"
        if not path.exists() or path.read_text().count("\n") < after:
            return False
        return all("sweep" in str(self.report(rank).get("where")) for rank in range(2))

    def report(self, rank: int) -> dict[str, object]:
        """What the watchdog of a rank wrote last; empty before."""
        try:
            found: dict[str, object] = json.loads((self.out / f"ranks/watch/rank-{rank}.json").read_text())
        except (OSError, ValueError):
            return {}
        return found


def state(out: Path, data: Data, folder: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of a run's last checkpoint, as one process reads them."""
    checkpoint = latest_checkpoint(out)
    assert checkpoint is not None and checkpoint_step(checkpoint) == STEPS
    model = build_model(data.config(folder, *SETTINGS))
    optimizer = Optimizer(model, AdamWSettings())
    assert read_checkpoint(checkpoint, model, optimizer).step == STEPS
    return dict(model.named_parameters()) | dict(optimizer.state())


@pytest.fixture(scope="module")
def alone(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(data.config(folder, *SETTINGS), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def two(data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str, str]:
    """Two ranks with windows side by side, and what they said."""
    made = Run(data, tmp_path_factory.mktemp("two"))
    return made, *made.finish("--json")


def assert_equal(ranks: Run, alone: Path, data: Data, folder: Path) -> None:
    found, right = state(ranks.out, data, folder), state(alone, data, folder)
    assert found.keys() == right.keys() and len(found) > 100
    for name, tensor in right.items():
        assert (found[name] - tensor).abs().max() <= 1e-10, name
    for line, other in zip(metrics(ranks.out), metrics(alone), strict=True):
        assert line["step"] == other["step"] and line["bases"] == other["bases"]
        assert abs(line["loss_nats"] - other["loss_nats"]) <= 1e-10


def test_two_ranks_train_as_one_process(
    two: tuple[Run, str, str], alone: Path, data: Data, tmp_path: Path
) -> None:
    assert_equal(two[0], alone, data, tmp_path)


def test_two_ranks_evaluate_as_one_process(two: tuple[Run, str, str], alone: Path) -> None:
    mine, theirs = (
        Ledger.load(out / f"eval/step-{STEPS:06d}/ledger.npz").totals() for out in (two[0].out, alone)
    )
    assert mine.count == theirs.count
    assert abs(mine.bits_full - theirs.bits_full) <= 1e-10


def test_one_rank_talks(two: tuple[Run, str, str]) -> None:
    ranks, said, talk = two
    found = json.loads(said)
    assert found["step"] == STEPS and not found["resumed"]
    assert talk.count(f"done: step {STEPS}") == 1 and talk.count("2 ranks: ") == 1
    assert [line["step"] for line in metrics(ranks.out)] == list(range(1, STEPS + 1))
    assert not (ranks.out / "ranks").exists()


def test_two_ranks_share_a_window(data: Data, alone: Path, tmp_path: Path) -> None:
    ranks = Run(data, tmp_path, "parallel.cp=2", "parallel.keep=true", "eval.at_end=false")
    ranks.finish()
    assert_equal(ranks, alone, data, tmp_path)


def test_whatever_happens_to_its_ranks_a_run_ends_with_the_same_bits(
    data: Data, two: tuple[Run, str, str], tmp_path: Path
) -> None:
    ranks = Run(data, tmp_path, "parallel.hang_seconds=8", "checkpoint.window_minutes=0.0001")
    code, said = ranks.hurt(signal.SIGTERM, rank=None, after=1)
    assert code == 75 and said.count("error:") == 1, said
    assert "stopped by SIGTERM after step" in said and "the same command goes on from there" in said

    code, said = ranks.hurt(signal.SIGKILL, rank=0)
    assert code == 1 and said.count("error:") == 1, said
    assert "rank 0 of 2" in said and "was killed by SIGKILL" in said and "Traceback" not in said

    code, said = ranks.hurt(signal.SIGSTOP, rank=1)
    assert code == 1 and said.count("error:") == 1, said
    assert "rank 1 of 2" in said and "gives no sign of life; last seen in step " in said

    ranks.finish()
    found, right = state(ranks.out, data, tmp_path), state(two[0].out, data, tmp_path)
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in right.items())
    assert metrics(ranks.out) == metrics(two[0].out)
    assert not list(ranks.out.rglob(".tmp*")) and not (ranks.out / "ranks").exists()


def test_a_rank_killed_between_files_costs_nothing(
    data: Data, two: tuple[Run, str, str], tmp_path: Path
) -> None:
    """In a checkpoint, in an entry of an unfinished window, or after its own and before the other rank's;
    the one that writes what is there once, and the other."""
    ranks, points = Run(data, tmp_path, "checkpoint.window_minutes=1e-9"), random.Random(5)
    killed = [1, 0, 1, 0]
    lives = [ranks.die_at(points.randint(2, 14), rank) for rank in killed]
    assert [code for code, _ in lives].count(1) >= 3, lives
    for rank, (code, said) in zip(killed, lives, strict=True):
        assert code == 0 or (said.count("error:") == 1 and f"rank {rank} of 2" in said), said
    ranks.finish()
    found, right = state(ranks.out, data, tmp_path), state(two[0].out, data, tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in right.items())
    assert metrics(ranks.out) == metrics(two[0].out)
    assert not list(ranks.out.rglob(".tmp*")) and not list(ranks.out.glob("window/*/*"))


def test_torchrun_starts_them_again(data: Data, two: tuple[Run, str, str], tmp_path: Path) -> None:
    """On the store that the ranks before them have used."""
    ranks = Run(data, tmp_path, "checkpoint.window_minutes=1e-9")
    done = ranks.under_torchrun(1, **killed_at(6, rank=1))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("2 ranks: ") == 2, "two lives"
    found, right = state(ranks.out, data, tmp_path), state(two[0].out, data, tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in right.items())
    assert metrics(ranks.out) == metrics(two[0].out)
