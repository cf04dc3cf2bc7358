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
from genoctx.report.context_ledger import ContextLedger
from genoctx.report.ledger import Ledger
from genoctx.run.eval_checkpoint import layout_for
from genoctx.run.trainer import build_model

LIMIT = 3
"""Windows over two ranks: one of them is idle for a round."""
ARGUMENTS = ("--limit", str(LIMIT), "--chunk", "600", "--dtype", "float64", "--rc", "--contexts", "128,512")


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


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    """Two ranks; ``arguments`` are what torchrun starts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def on_two_ranks(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of an evaluation."""
    ranks = torchrun("-m", "genoctx", "eval", *arguments)
    out, said = ranks.communicate(timeout=300)
    return ranks.returncode, out, said


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
def two(checkpoint: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Where two ranks wrote, and what they said."""
    folder = tmp_path_factory.mktemp("two")
    code, out, said = on_two_ranks(*command(checkpoint, data, folder), "--json")
    assert code == 0, said
    return folder, out, said


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
    name: str, two: tuple[Path, str, str], alone: Path
) -> None:
    assert_same(Ledger.load(two[0] / "ev" / name), Ledger.load(alone / "ev" / name))


def test_two_ranks_write_the_track_of_one_process(two: tuple[Path, str, str], alone: Path) -> None:
    assert (two[0] / "t.bedgraph").read_text() == (alone / "t.bedgraph").read_text()


def test_one_rank_talks(two: tuple[Path, str, str]) -> None:
    folder, out, said = two
    found = json.loads(out)
    assert found["windows"] == LIMIT and found["ledger"] == str(folder / "ev/ledger.npz")
    assert said.count("held-out loss at step") == 1
    assert sorted(p.name for p in (folder / "ev").iterdir()) == [
        "contexts.npz",
        "ledger-rc.npz",
        "ledger.npz",
        "summary.json",
    ]


def test_two_ranks_write_the_contexts_of_one_process(two: tuple[Path, str, str], alone: Path) -> None:
    mine, theirs = (ContextLedger.load(folder / "ev" / "contexts.npz") for folder in (two[0], alone))
    assert mine.contexts == theirs.contexts == (128, 512, 1024)
    for name in ("windows", "context", "window", "contig", "block_start", "seen", "count"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    assert mine.adaptive_nats_sum is not None and theirs.adaptive_nats_sum is not None
    assert np.array_equal(mine.adaptive_nats_sum, theirs.adaptive_nats_sum)
    assert np.abs(mine.nats_acgt_sum - theirs.nats_acgt_sum).max() <= 1e-10


def test_what_cannot_be_written_is_said_once_and_leaves_nothing(
    checkpoint: Path, data: Data, tmp_path: Path
) -> None:
    code, _, said = on_two_ranks(*command(checkpoint, data, tmp_path), "--contexts", "96")
    assert code != 0 and said.count("error: ") == 1, said
    assert "cannot be cut into 96" in said and not (tmp_path / "ev").exists()


def test_a_rank_that_hangs_is_named(checkpoint: Path, data: Data, tmp_path: Path) -> None:
    """It stops while it scores: nobody waits for it for ever."""
    worker = Path(__file__).with_name("hanging_eval.py")
    ranks = torchrun(str(worker), *command(checkpoint, data, tmp_path))
    said = ranks.communicate(timeout=120)[1]
    assert ranks.returncode != 0 and "rank 1 of 2" in said and "gives no sign of life" in said, said
    assert not (tmp_path / "ev" / "ledger.npz").exists()


@pytest.mark.parametrize(
    ("ranks", "windows", "dp", "cp"), [(8, 100, 8, 1), (8, 3, 2, 4), (6, 5, 3, 2), (4, 1, 1, 4), (5, 4, 1, 5)]
)
def test_ranks_that_no_window_is_left_for_share_one(ranks: int, windows: int, dp: int, cp: int) -> None:
    assert (layout_for(ranks, windows).dp, layout_for(ranks, windows).cp) == (dp, cp)
