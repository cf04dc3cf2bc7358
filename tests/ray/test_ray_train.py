"""``genoctx train --launcher ray`` on a real cluster of two workers: the bits of ``--nproc 2``, whatever dies.

Two clusters: the command's own, and one that is there already, as on a cluster that others have started.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_run import Data, Listener, make_data, metrics

from genoctx.config import Config
from genoctx.errors import InputError, StoppedOnRequest
from genoctx.model.shards import Shards
from genoctx.run.rundir import checkpoint_step, latest_checkpoint

ray = pytest.importorskip("ray")
pytest.importorskip("ray.train.torch")

STEPS = 12
SETTINGS = (f"train.steps={STEPS}", "checkpoint.every_steps=2", "eval.at_start=false")


class Runs:
    """One config, trained in several directories."""

    def __init__(self, data: Data, folder: Path, scratch: str) -> None:
        self.data, self.folder, self.scratch = data, folder, scratch

    def config(self, *more: str) -> Config:
        return self.data.config(self.folder, *SETTINGS, *more)

    def command(self, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``genoctx --json train``; started where no cluster is known."""
        self.config()
        command = [
            sys.executable,
            "-m",
            "genoctx",
            "--json",
            "train",
            str(self.folder / "run.toml"),
            "-o",
            str(out),
        ]
        command += [part for text in SETTINGS for part in ("--set", text)]
        env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        env["RAY_TMPDIR"] = self.scratch
        done = subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, timeout=900, env=env
        )
        return done


@pytest.fixture(scope="module")
def scratch() -> Iterator[str]:
    """For Ray's sockets, which have short paths."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, genomes: Path, scratch: str) -> Runs:
    folder = tmp_path_factory.mktemp("ray")
    data = make_data(folder, genomes / "lambda_phage.fa.gz", context=2048, holdout="0.2")
    return Runs(data, folder, scratch)


@pytest.fixture(scope="module")
def local(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of ``--nproc 2``."""
    out = tmp_path_factory.mktemp("local") / "run"
    done = runs.command(out, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def cluster(scratch: str) -> Iterator[None]:
    """Two workers' worth of cluster, which this process is connected to."""
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_worker_niceness": "0",
    }
    os.environ |= settings
    try:
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=scratch,
        )
        yield
    finally:
        ray.shutdown()
        for name in settings:
            del os.environ[name]


def start(config: Config, out: Path, listener: Listener) -> bool:
    """Train on the cluster; whether the run was resumed."""
    from genoctx.run.ray_train import start_ray

    return start_ray(config, source="# mine\n", out=out, monitor=listener, nproc=2).resumed


def after(steps: int, out: Path, act: Callable[[], None]) -> None:
    """Call ``act``, from a thread, once the run in ``out`` has done so many steps."""

    def wait() -> None:
        path = out / "metrics.jsonl"
        while not path.exists() or path.read_text().count("\n") < steps:
            time.sleep(0.01)
        act()

    threading.Thread(target=wait, daemon=True).start()


def process(out: Path, rank: int) -> int:
    """As the watchdog's report names it."""
    return int(json.loads((out / f"ranks/watch/rank-{rank}.json").read_text())["process"])


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of the last checkpoint; the files hold them in any order."""
    folder = latest_checkpoint(out)
    assert folder is not None and checkpoint_step(folder) == STEPS
    shards = Shards(folder / "shards")
    return {key: shards.read(key) for key in shards.keys}


def assert_same(out: Path, local: Path) -> None:
    """``out`` ends with the bits of ``local``."""
    mine, theirs = tensors(out), tensors(local)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())
    assert metrics(out) == metrics(local)
    assert not list(out.rglob(".tmp*"))


def test_the_command_starts_a_cluster_and_trains_as_local_ranks_do(
    runs: Runs, local: Path, tmp_path: Path
) -> None:
    done = runs.command(tmp_path / "run", "--nproc", "2", "--launcher", "ray")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == STEPS  # and nothing else of Ray's
    assert done.stderr.count("done: step") == 1 and "1 threads" in done.stderr
    assert "Ray" not in done.stderr and "ray::" not in done.stderr
    argv = json.loads((tmp_path / "run/provenance.json").read_text())["sessions"][0]["argv"]
    assert argv[-2:] == ["--launcher", "ray"]
    assert_same(tmp_path / "run", local)


def test_a_killed_worker_is_replaced(runs: Runs, local: Path, cluster: None, tmp_path: Path) -> None:
    out, listener = tmp_path / "run", Listener()
    after(3, out, lambda: os.kill(process(out, 1), signal.SIGKILL))
    assert not start(runs.config(), out, listener) or listener.text.count("start 2 of the ranks") == 1
    assert "rank 1 of 2 died without a word" in listener.text
    assert_same(out, local)


def test_a_signal_saves_and_the_same_command_goes_on(
    runs: Runs, local: Path, cluster: None, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    after(3, out, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedOnRequest, match="stopped by SIGTERM after step"):
        start(runs.config(), out, Listener())
    assert start(runs.config(), out, Listener())
    assert_same(out, local)


def test_an_error_of_all_ranks_is_said_once(runs: Runs, cluster: None, tmp_path: Path) -> None:
    broken = tmp_path / "store"
    shutil.copytree(runs.data.store, broken)
    for file in broken.glob("codes*"):
        file.unlink()
    config, listener = runs.config(f"data.store={broken}"), Listener()
    with pytest.raises(InputError, match=str(broken)):
        start(config, tmp_path / "run", listener)
    assert listener.lines == []
