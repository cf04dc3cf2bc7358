"""The ranks of a run: how many there are, who talks, and how all of them come to one decision.

``Ranks()`` is a run of one process; nothing in it touches torch.distributed. ``Joined`` is one of many, where
a launcher says so (genoctx/run/launch.py).
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from genoctx.errors import GenoctxError, LostContact, NoAnswer, from_os_error, shared
from genoctx.run.launch import Place, announce, hand_over
from genoctx.run.meeting import meeting_store
from genoctx.run.monitor import Monitor, Silent
from genoctx.run.stop import StopSignals
from genoctx.run.watchdog import Report, Watchdog

T = TypeVar("T")

RESUMES = "raise parallel.hang_seconds if it was only slow; the same command goes on from the last checkpoint"
"""What helps a training run in which a rank hung."""


def backend(cuda: bool) -> str:
    """What torch.distributed is to talk over."""
    return "cpu:gloo,cuda:nccl" if cuda else "gloo"


class Ranks:
    """A run of one process."""

    rank, size = 0, 1
    here = 1
    """Ranks on this machine."""

    @property
    def first(self) -> bool:
        """The one rank that talks and writes what all share."""
        return self.rank == 0

    def together(self, action: Callable[[], T]) -> T:
        """What ``action`` returns here. If it fails on any rank, every rank raises the first one's error."""
        return action()

    def once(self, action: Callable[[], T]) -> T:
        """What ``action``, done by the first rank alone, returns or raises: the same everywhere."""
        return action()

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes: the same answer everywhere."""
        return flag

    def most(self, value: int) -> int:
        """The largest value of all ranks."""
        return value

    def monitor(self, monitor: Monitor) -> Monitor:
        """The one given on the first rank; a silent one elsewhere."""
        return monitor

    def stop_signals(self, max_seconds: float) -> StopSignals:
        """Signals and the time limit, as one request that all ranks see at the same chunk."""
        return StopSignals(max_seconds)

    def watched(self, folder: Path, log: Path | None = None) -> AbstractContextManager[object]:
        """Within it a rank that stands still is noticed, once ``at`` says where they all are.

        The ranks' reports lie in ``folder`` meanwhile, and ``log`` is told how it ended. A collective that
        another rank left undone raises LostContact.
        """
        del folder, log
        return nullcontext()

    def at(self, where: str, *, patient: bool = False) -> None:
        """Say what is done now; ``patient``: it may take long."""

    def pulse(self) -> None:
        """Say that this rank does something that the others wait for."""

    def watch_layers(self, layers: Iterable[nn.Module]) -> None:
        """Say which layer is computed, too."""


class Joined(Ranks):
    """One of many processes. Talks over gloo on the host, beside whatever the devices use."""

    def __init__(self, place: Place, device: str, hang_seconds: float, remedy: str = RESUMES) -> None:
        """Wait until all ranks are there. ``hang_seconds``: how long one may stand still; 0 for ever.

        ``remedy``: what to say of it, besides which rank it was.
        """
        cuda = device == "cuda"
        if cuda:
            torch.cuda.set_device(place.local_rank)
        if not dist.is_initialized():
            dist.init_process_group(
                backend(cuda),
                store=meeting_store(place, patience(hang_seconds)),
                rank=place.rank,
                world_size=place.size,
                timeout=datetime.timedelta(seconds=patience(hang_seconds)),
            )
        self._hang_seconds, self._remedy = hang_seconds, remedy
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        limit = datetime.timedelta(seconds=patience(hang_seconds))
        self._group = dist.new_group(backend="gloo", timeout=limit)
        # a barrier's own limit binds the first rank, who looks for the others; these wait twice as long for the first
        self._meeting = dist.new_group(
            backend="gloo", timeout=min(limit, datetime.timedelta(seconds=2 * hang_seconds or 1e6))
        )
        self._watchdog: Watchdog | None = None
        hosts: list[Any] = [None] * self.size
        dist.all_gather_object(hosts, socket.gethostname(), group=self._group)
        self.here = hosts.count(socket.gethostname())

    def together(self, action: Callable[[], T]) -> T:
        result, error = _attempt(action)
        self._arrive()
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, error, group=self._group)
        failures = [t for t in told if t is not None]
        if failures:
            raise shared(*failures[0])
        return result  # type: ignore[return-value]

    def once(self, action: Callable[[], T]) -> T:
        box: list[Any] = [_attempt(action) if self.first else None]
        self._arrive()
        dist.broadcast_object_list(box, src=0, group=self._group)
        result, error = box[0]
        if error is not None:
            raise shared(*error)
        return result

    def _arrive(self) -> None:
        """Wait for the others after work that one of them may hang in, while there is no watchdog to name it."""
        if self._watchdog is not None or not self._hang_seconds:
            return
        begin, limit = time.monotonic(), datetime.timedelta(seconds=self._hang_seconds)
        try:
            dist.monitored_barrier(self._meeting, limit, wait_all_ranks=True)
        except RuntimeError as error:
            absent = _absent(str(error)) if self.first else "0"
            if not absent or time.monotonic() - begin < (0.9 if self.first else 1.8) * self._hang_seconds:
                raise gone() from error
            raise NoAnswer(
                f"no sign of rank {absent} of {self.size} for {self._hang_seconds:g} s, outside of the work itself",
                f"look at that machine and its way to the files; {self._remedy}",
            ) from error

    def any(self, flag: bool) -> bool:
        return bool(self.most(int(flag)))

    def most(self, value: int) -> int:
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return int(tensor.item())

    def monitor(self, monitor: Monitor) -> Monitor:
        return monitor if self.first else Silent()

    def stop_signals(self, max_seconds: float) -> StopSignals:
        return _AgreedStop(max_seconds, self)

    @contextmanager
    def watched(self, folder: Path, log: Path | None = None) -> Iterator[None]:
        reports = folder / "ranks" / "watch"
        self.once(lambda: _empty(reports))
        seen_by_all = not self.any(not reports.is_dir())
        bite = partial(_end_job, self.rank, log)
        try:
            if seen_by_all:
                with Watchdog(
                    reports, self.rank, self.size, self._hang_seconds, bite, self._remedy
                ) as self._watchdog:
                    yield
            else:  # a folder that machines do not share: the connection's timeout is left
                yield
        except Exception as error:
            if (lost := lost_contact(error)) is not None:
                raise lost from error
            raise
        finally:
            self._watchdog = None
            if self.first:
                shutil.rmtree(reports, ignore_errors=True)
                with suppress(OSError):  # what was made for the reports alone
                    reports.parent.rmdir()
                    folder.rmdir()

    def at(self, where: str, *, patient: bool = False) -> None:
        if self._watchdog is not None:
            self._watchdog.at(where, patient=patient)

    def pulse(self) -> None:
        if self._watchdog is not None:
            self._watchdog.pulse()

    def watch_layers(self, layers: Iterable[nn.Module]) -> None:
        for i, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._at_layer, i))

    def _at_layer(self, layer: int, *_: object) -> None:
        if self._watchdog is not None:
            self._watchdog.at_layer(layer)

    def leave(self) -> None:
        """The end of this process's part; collective."""
        self._arrive()
        dist.barrier(group=self._group)
        dist.destroy_process_group()


def patience(hang_seconds: float) -> float:
    """Seconds that a rank waits for another at all; 0 stands for ever, and is a month.

    The watchdog speaks first: this is for ranks that lost theirs, and for what may take long.
    """
    return max(1800.0, 2 * hang_seconds) if hang_seconds else 30 * 86400.0


def _absent(said: str) -> str:
    """The ranks that a barrier waited for in vain, by what it says on the first rank."""
    found = re.search(r"Ranks ([\d, ]+) failed to pass monitoredBarrier", said)
    return found[1].strip() if found else ""


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _end_job(rank: int, log: Path | None, error: GenoctxError, hung: Sequence[Report]) -> None:
    """End this process, and those that hang where they are on this machine: none would end by itself."""
    if not hand_over(rank, error):
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        sys.stderr.flush()
    if log is not None:
        with suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write(f"ended: {error.message}\n")
    for report in hung:
        if report.host == socket.gethostname() and report.process != os.getpid():
            with suppress(OSError):
                os.kill(report.process, signal.SIGKILL)
    os._exit(error.exit_code)


def _attempt(action: Callable[[], T]) -> tuple[T | None, tuple[type[GenoctxError], str, str] | None]:
    """What ``action`` returns, or the error it raises, in parts that can be sent."""
    try:
        return action(), None
    except GenoctxError as error:
        known = error
    except OSError as error:
        found = from_os_error(error)
        if found is None:
            raise
        known = found
    return None, (type(known), known.message, known.hint)


class _AgreedStop(StopSignals):
    """A request that reached one rank stops all of them, at the same chunk."""

    def __init__(self, max_seconds: float, ranks: Joined) -> None:
        super().__init__(max_seconds)
        self._ranks = ranks

    def __enter__(self) -> StopSignals:
        super().__enter__()
        announce(self._ranks.rank, ready=True)
        return self

    def wanted(self) -> bool:
        if not self._ranks.any(super().wanted()):
            return False
        self.reason = self.reason or "the signal of another rank"
        return True


def gone() -> LostContact:
    """What the ranks that are left say."""
    return LostContact(
        "another rank is gone; this one cannot go on alone",
        "the launcher names the rank that ended; the same command goes on from the last checkpoint",
    )


def lost_contact(error: BaseException) -> LostContact | NoAnswer | None:
    """What to say when a collective broke because of another rank; None for any other error."""
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    fault: BaseException | None = error
    while fault is not None:  # an error of ours may have been made of it
        if isinstance(fault, LostContact | NoAnswer):
            return fault
        if "Timed out waiting" in str(fault):
            return NoAnswer(
                "another rank has not answered for as long as one is waited for",
                "look for a rank that hangs in reading weights or in writing a checkpoint, and at the network; "
                "the same command goes on from the last checkpoint",
            )
        if isinstance(fault, dist.DistError) or any(word in str(fault) for word in words):
            return gone()
        fault = fault.__cause__
    return None
