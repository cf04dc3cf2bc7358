"""``genoctx eval`` under torchrun: the ledger, the other strand and the track of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import Data, make_data

from genoctx.cli import app
from genoctx.model.weights import save_weights
from genoctx.report.ledger import Ledger
from genoctx.run.eval_checkpoint import layout_for
from genoctx.run.trainer import build_model

LIMIT = 3
"""Windows over two ranks: one of them is idle for a round."""
ARGUMENTS = ("--limit", str(LIMIT), "--chunk", "600", "--dtype", "float64", "--rc")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> Data:
    folder = tmp_path_factory.mktemp("ranks")
    return make_data(folder, genomes / "lambda_phage.fa.gz", context=1024, holdout="0.2")


@pytest.fixture(scope="module")
def checkpoint(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a size at which every base has its own loss; fresh ones say 1/16 for all."""
    folder = tmp_path_factory.mktemp("weights")
    model = build_model(data.config(folder))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    (folder / "hub").mkdir()
    save_weights(model, folder / "hub")
    return folder / "hub"


def on_two_ranks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "-m", "genoctx", "eval", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def command(checkpoint: Path, data: Data, folder: Path) -> list[str]:
    place = [
        "--windows",
        str(data.windows),
        "-o",
        str(folder / "ev"),
        "--tracks",
        str(folder / "t.bedgraph:1"),
    ]
    return [str(checkpoint), *place, *ARGUMENTS]


@pytest.fixture(scope="module")
def alone(checkpoint: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    assert app.run(["eval", *command(checkpoint, data, folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def two(
    checkpoint: Path, data: Data, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("two")
    done = on_two_ranks(*command(checkpoint, data, folder), "--json")
    assert done.returncode == 0, done.stderr
    return folder, done


def assert_same(mine: Ledger, theirs: Ledger) -> None:
    """Rows and counts exactly, nats to 1e-10 (in float64)."""
    for name in ("windows", "window", "contig", "block_start", "count"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    assert mine.excluded == theirs.excluded and len(mine.windows) == LIMIT
    for name in ("nats_full_sum", "nats_acgt_sum"):
        assert np.abs(getattr(mine, name) - getattr(theirs, name)).max() <= 1e-10, name
    assert mine.header["checkpoint"] == theirs.header["checkpoint"]


@pytest.mark.parametrize("name", ["ledger.npz", "ledger-rc.npz"])
def test_two_ranks_write_the_ledger_of_one_process(
    name: str, two: tuple[Path, subprocess.CompletedProcess[str]], alone: Path
) -> None:
    assert_same(Ledger.load(two[0] / "ev" / name), Ledger.load(alone / "ev" / name))


def test_two_ranks_write_the_track_of_one_process(
    two: tuple[Path, subprocess.CompletedProcess[str]], alone: Path
) -> None:
    assert (two[0] / "t.bedgraph").read_text() == (alone / "t.bedgraph").read_text()


def test_one_rank_talks(two: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = two
    found = json.loads(done.stdout)
    assert found["windows"] == LIMIT and found["ledger"] == str(folder / "ev/ledger.npz")
    assert done.stderr.count("held-out loss at step") == 1
    assert sorted(p.name for p in (folder / "ev").iterdir()) == [
        "ledger-rc.npz",
        "ledger.npz",
        "summary.json",
    ]


def test_what_ranks_cannot_write_is_said_once(checkpoint: Path, data: Data, tmp_path: Path) -> None:
    done = on_two_ranks(*command(checkpoint, data, tmp_path), "--contexts", "512")
    assert done.returncode != 0 and done.stderr.count("error: --contexts") == 1, done.stderr
    assert "score the contexts in one process" in done.stderr and not (tmp_path / "ev").exists()


@pytest.mark.parametrize(
    ("ranks", "windows", "dp", "cp"), [(8, 100, 8, 1), (8, 3, 2, 4), (6, 5, 3, 2), (4, 1, 1, 4), (5, 4, 1, 5)]
)
def test_ranks_that_no_window_is_left_for_share_one(ranks: int, windows: int, dp: int, cp: int) -> None:
    assert (layout_for(ranks, windows).dp, layout_for(ranks, windows).cp) == (dp, cp)
