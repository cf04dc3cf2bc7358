"""One rank in a process that a cluster started: no command line, no terminal, no signals.

It talks to the driver of the run through a Line to the driver's Desk (genoctx/run/desk.py).
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from genoctx.config import Config
from genoctx.errors import GenoctxError, LostContact, NoAnswer, from_os_error, is_shared
from genoctx.run.desk import Attempt
from genoctx.run.launch import Place, hand_over_to
from genoctx.run.loop import Outcome
from genoctx.run.relay import Message, Relay
from genoctx.run.stop import ask_to_stop
from genoctx.run.train_ranks import train_rank

ASK_SECONDS = 1.0
"""How often the first rank looks whether the driver wants to stop."""
LOCK_SECONDS = 120.0
"""A file system may need so long to notice that the holder of a lock is gone with its node."""


@dataclass(frozen=True)
class Job:
    """What every rank needs to know."""

    config: Config
    source: str
    out: Path
    argv: tuple[str, ...]
    """The driver's command line, for the run's provenance."""
    threads: str
    """OMP_NUM_THREADS as the user set it; empty: the cores of a machine divided by its ranks."""


class Line(Protocol):
    """The Desk's methods for ranks, from another process."""

    def begin(self) -> Attempt | None: ...

    def send(self, attempt: int, message: Message) -> None:
        """Does not wait."""

    def asked(self) -> str: ...

    def end(self, error: GenoctxError) -> None: ...

    def failed(self, error: GenoctxError) -> None: ...


def run_rank(here: Place, beside: int, job: Job, line: Line) -> Outcome | None:
    """Train as rank ``here`` until the run is done or ends with an error; None after the latter.

    ``beside``: ranks on this machine. torch.distributed must be initialized. Raises what ends this attempt
    alone: the launcher may start the ranks again.
    """
    attempt = _attempt(here, line)
    if attempt is None:
        return None
    sys.argv = list(job.argv)
    _take_share_of_cores(job.threads, beside)
    hand_over_to(lambda rank, error: line.failed(_known(error) or GenoctxError(f"rank {rank}: {error}")))
    over = threading.Event()
    if here.rank == 0:
        _wait_for_lock(job.out, LOCK_SECONDS if attempt.number > 1 else 0.0)
        threading.Thread(target=_pass_on_stop, args=(line.asked, over), daemon=True).start()
    try:
        return train_rank(
            here,
            job.config,
            source=job.source,
            out=job.out,
            monitor=Relay(lambda message: line.send(attempt.number, message)),
            fresh=attempt.fresh,
        )
    except Exception as error:
        known = _known(error)
        if known is None or isinstance(known, LostContact | NoAnswer):
            raise
        if is_shared(known):
            if here.rank == 0:
                line.end(known)
            return None
        line.end(known)
        raise
    finally:
        over.set()
        line.asked()  # it is answered after everything sent before


def _attempt(here: Place, line: Line) -> Attempt | None:
    """The first rank's new attempt, on every rank."""
    box = [line.begin() if here.rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _known(error: BaseException) -> GenoctxError | None:
    if isinstance(error, GenoctxError):
        return error
    return from_os_error(error) if isinstance(error, OSError) else None


def _take_share_of_cores(given: str, beside: int) -> None:
    """Ray starts its workers with one thread each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(given) if given.isdecimal() else cores // beside
    os.environ["OMP_NUM_THREADS"] = str(max(1, threads))
    torch.set_num_threads(max(1, threads))


def _pass_on_stop(asked: Callable[[], str], over: threading.Event) -> None:
    while not over.wait(ASK_SECONDS):
        if reason := asked():
            return ask_to_stop(reason)


def _wait_for_lock(run: Path, seconds: float) -> None:
    """Wait until the first rank of an earlier attempt is gone; whoever wants the lock then says if it is not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (run / ".lock").exists():
        with (run / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.2)
