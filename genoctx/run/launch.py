"""Which rank of a job this process is, and what ranks and their launcher tell each other. No torch.

Under torchrun or Slurm a process joins the ranks that are there; ``--nproc`` starts them
(genoctx/run/local_ranks.py). Every rank runs the same command, and the first one talks. Ranks that
``--nproc`` started say nothing about their end: they leave it in a folder of the launcher, which raises it
as if there were no ranks.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from genoctx import errors
from genoctx.errors import GenoctxError, UsageError
from genoctx.files import write_atomic

FOLDER = "GENOCTX_RANKS"
"""Environment variable of ranks that ``--nproc`` started: the folder where they leave word."""
INTERRUPTED = 130


@dataclass(frozen=True)
class Place:
    """Which rank this process is."""

    rank: int
    size: int
    local_rank: int
    """Among those of this machine: its GPU."""
    launcher: str


def place(env: MutableMapping[str, str] = os.environ) -> Place | None:
    """Where a launcher put this process, or None when it is alone.

    Under ``srun`` the variables that torch.distributed reads are filled in. UsageError for numbers
    that make no sense.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        name = "genoctx" if FOLDER in env else "torchrun"
        found = _numbers(env, name, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:  # the batch script itself is no step
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        found = _numbers(env, "slurm", "SLURM_PROCID", tasks, "SLURM_LOCALID")
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "localhost")
        env.setdefault("MASTER_ADDR", first_node(nodes))
        env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 20000))
    else:
        return None
    return found if found.size > 1 else None


def _numbers(env: Mapping[str, str], launcher: str, rank: str, size: str, local: str) -> Place:
    try:
        found = Place(int(env[rank]), int(env[size]), int(env.get(local, "0")), launcher)
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"{launcher} set {rank} but no usable {size} or {local}: {error}",
            "start ranks with --nproc, torchrun or srun",
        ) from None
    if not 0 <= found.rank < found.size:
        raise UsageError(f"{rank} is {found.rank} with {size} {found.size}", "start all ranks anew")
    return found


def first_node(nodes: str) -> str:
    """First host of a Slurm node list: ``gpu[07-09,12],cpu1`` -> ``gpu07``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes)
    return nodes if match is None else match[1] + (match[2] or "") + (match[3] or "")


# word from a rank to the process that started it


_receivers: list[Callable[[int, BaseException], None]] = []


def hand_over_to(receiver: Callable[[int, BaseException], None]) -> None:
    """For a launcher that shares no folder with its ranks: from now on ``hand_over`` calls ``receiver``."""
    _receivers.append(receiver)


def hand_over(rank: int, error: BaseException) -> bool:
    """Leave ``error`` for the launcher to raise; False where no launcher of genoctx started this rank."""
    if _receivers:
        _receivers[-1](rank, error)
        return True
    folder = os.environ.get(FOLDER)
    if folder is None:
        return False
    word = {
        "rank": rank,
        "time": time.time(),
        "kind": type(error).__name__,
        "message": getattr(error, "message", str(error)),
        "hint": getattr(error, "hint", ""),
    }
    write_atomic(Path(folder) / f"end-{rank}.json", json.dumps(word))
    return True


_ready = threading.Event()


def follow_launcher() -> None:
    """End this process with the one that started it, as long as the ranks have not met.

    A rank looks for the others for half an hour. From ``announce(ready=True)`` on, the watchdog asks it to save.
    """
    parent = os.getppid()

    def follow() -> None:
        while not _ready.wait(1.0):
            if os.getppid() != parent:
                os._exit(1)

    if FOLDER in os.environ:
        threading.Thread(target=follow, name="follow", daemon=True).start()


def announce(rank: int, *, ready: bool) -> None:
    """Tell the launcher which process this is, and whether it saves before it ends when a signal comes."""
    if ready:
        _ready.set()
    if (folder := os.environ.get(FOLDER)) is not None:
        name = "ready" if ready else "started"
        write_atomic(Path(folder) / f"{name}-{rank}", str(os.getpid()))


def first_word(folder: Path) -> GenoctxError | KeyboardInterrupt | None:
    """What the ranks left in ``folder``: the end that came first."""
    words = [json.loads(file.read_text()) for file in folder.glob("end-*.json")]
    if not words:
        return None
    word = min(words, key=lambda w: (w["time"], w["rank"]))
    if word["kind"] == KeyboardInterrupt.__name__:
        return KeyboardInterrupt()
    kind = getattr(errors, word["kind"], GenoctxError)
    error: GenoctxError = kind(word["message"], word["hint"])
    return error
