"""One of the two ranks of test_ranks.py: ``ranks_worker.py FOLDER RANK [PLACE]``; what it found is ``RANK.json``."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from genoctx.errors import GenoctxError, InputError, is_shared
from genoctx.run.launch import Place
from genoctx.run.ranks import Joined
from genoctx.run.stop import StopRequested


def fail(error: Exception) -> NoReturn:
    raise error


def caught(action: Callable[[], object]) -> list[object]:
    """The error of ``action``, in words."""
    try:
        return ["nothing", action()]
    except GenoctxError as error:
        return [type(error).__name__, error.message, error.hint, is_shared(error)]


def stopped(ranks: Joined, rank: int) -> list[object]:
    """Only the second rank gets a signal."""
    with ranks.stop_signals(0) as stop:
        stop.check()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            stop.check()
        except StopRequested:
            return ["stopped", stop.reason]
    return ["went on"]


def meet(folder: Path, rank: int, hang_seconds: float) -> Joined:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    return Joined(Place(rank, 2, rank, "test"), "cpu", hang_seconds)


def late(folder: Path, rank: int, place: str) -> None:
    """A rank hangs where no watchdog looks, and comes back when it is too late."""
    ranks = meet(folder, rank, 2)
    if place == "leaving":
        time.sleep(6 * rank)
        found = caught(ranks.leave)
    elif place == "alone":  # the first rank, in what it does for all
        found = caught(lambda: ranks.once(lambda: time.sleep(8)))
    else:
        found = caught(lambda: ranks.together(lambda: time.sleep(6 * rank)))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)


def main(folder: Path, rank: int) -> None:
    ranks = meet(folder, rank, 240)
    broken = InputError("store is broken", "mend it")
    full = OSError(errno.ENOSPC, "No space left on device", "/disk/file")
    found: dict[str, Any] = {
        "own": ranks.together(lambda: rank),
        "one fails": caught(lambda: ranks.together(lambda: fail(broken) if rank == 1 else 7)),
        "disk full": caught(lambda: ranks.together(lambda: fail(full) if rank == 0 else 7)),
        "once": ranks.once(lambda: f"of {rank}"),
        "once fails": caught(lambda: ranks.once(lambda: fail(full))),
        "any": [ranks.any(False), ranks.any(rank == 1), ranks.most(rank * 1000)],
        "here": ranks.here,
        "stop": stopped(ranks, rank),
    }
    watched = folder / "ranks" / "watch"
    with ranks.watched(folder):
        ranks.at("somewhere", patient=True)
        found["watched"] = watched.is_dir()
        ranks.any(False)
    dist.barrier()
    found["left"] = watched.exists()
    dist.barrier()  # the other rank has looked too, before deserted() makes the folder again
    (folder / f"{rank}.json").write_text(json.dumps(found))
    found["lost"] = caught(lambda: deserted(ranks, folder))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)


def deserted(ranks: Joined, folder: Path) -> None:
    """The second rank is gone without a word."""
    with ranks.watched(folder):
        if ranks.rank == 1:
            os._exit(0)
        ranks.any(False)


if __name__ == "__main__":
    (late if sys.argv[3:] else main)(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
