"""SIGKILL at 20 random points of one run, in checkpoints, journals and windows: the last bit is the same."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Data, bits, metrics, run

from genoctx.config import Config
from genoctx.errors import GenoctxError
from genoctx.run.stop import StopSignals

STEPS, LIVES = 5, 20
SIZES = ("stream.chunk=400", "checkpoint.every_steps=1", "checkpoint.window_minutes=1e-9", "train.rc=false")


def _watched(act: Callable[[], None], into: Any, name: str) -> None:
    """Call ``act`` before every call of ``into.name``."""
    before = getattr(into, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        act()
        return before(*arguments, **named)

    setattr(into, name, watched)


def life(config: Config, out: Path, last: int, seen: Path) -> None:
    """A process that ends itself at event ``last``: a chunk is done, or a file is to be made durable or named."""
    events = 0

    def event() -> None:
        nonlocal events
        events += 1
        seen.write_text(str(events))
        if events == last:
            os.kill(os.getpid(), signal.SIGKILL)

    _watched(event, StopSignals, "check")
    for name in ("fsync", "replace", "rename"):
        _watched(event, os, name)
    run(config, out)


class Lives:
    """Processes forked one after the other from one that has imported everything."""

    def __init__(self, config: Config, out: Path, seen: Path) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["genoctx.run.train", "tiny_run"])
        self.config, self.out, self.seen = config, out, seen

    def live(self, last: int = 0) -> int:
        """Exit code of a life that ends at event ``last``, or when the run is done."""
        process = self.context.Process(target=life, args=(self.config, self.out, last, self.seen))
        process.start()
        process.join(300)
        assert process.exitcode is not None, "a life hangs"
        return process.exitcode


def settings(phage: Data, folder: Path, *more: str) -> Config:
    return phage.config(folder, *SIZES, "eval.at_start=false", "eval.at_end=false", *more)


def test_twenty_kills_end_in_the_same_bits(phage: Data, tmp_path: Path) -> None:
    config, seen = settings(phage, tmp_path), tmp_path / "seen"
    assert Lives(config, tmp_path / "whole", seen).live() == 0
    events = int(seen.read_text())
    lives, points = Lives(config, tmp_path / "killed", seen), random.Random(7)
    ended = [lives.live(points.randint(1, events // 6)) for _ in range(LIVES)]
    assert ended.count(-signal.SIGKILL) >= LIVES // 2, ended
    assert set(ended) <= {0, -signal.SIGKILL}
    assert lives.live() == 0
    assert bits(tmp_path / "killed", STEPS) == bits(tmp_path / "whole", STEPS)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert not (tmp_path / "killed/window").exists()
    assert not list((tmp_path / "killed").rglob("*.tmp-*"))


def test_no_room_for_a_mapped_home_is_one_message_and_the_run_goes_on_elsewhere(
    phage: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(settings(phage, tmp_path), tmp_path / "whole")

    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(GenoctxError, match="has no room for"):
        patch.setattr(os, "posix_fallocate", full)
        run(settings(phage, tmp_path, "homes.latents=file"), tmp_path / "a")
    run(settings(phage, tmp_path, "homes.latents=file", "homes.carries=file"), tmp_path / "a")
    assert bits(tmp_path / "a", STEPS) == bits(tmp_path / "whole", STEPS)
