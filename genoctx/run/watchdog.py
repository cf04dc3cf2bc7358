"""The watchdog: a rank that stands still while others wait for it is named, and the job ends.

Every rank has a thread that writes where the rank is into a small file of the run's directory, and reads those
of the others. Clocks of different machines are never compared: a reader counts how long it has seen no change.
A thread goes on while its rank waits or loops, and stops with a process that is stopped, swapped out or cut off
with its machine; the two look different, and are told apart.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType

from genoctx.errors import GenoctxError
from genoctx.run.stop import ask_to_stop

_BYTES = 1024
"""Of a file, written in place: it needs no more room on a full disk."""
_WHERE = 300
_INNER = 6
"""Frames in which a rank that waits for others has one of torch.distributed."""


@dataclass
class Report:
    """What a rank says about itself."""

    rank: int
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    beat: int = 0
    """Grows while the process lives."""
    moves: int = 0
    """Grows with the work: chunks and layers. All ranks walk the same schedule, so it says who is behind."""
    where: str = "starting"
    layer: int = -1
    patient: bool = True
    """What it does may take long: reading weights, writing a checkpoint."""
    waiting: bool = False
    """Inside a collective."""
    pulse: int = 0
    """Grows with work that this rank does alone, in which it moves no further than the others."""
    line: str = ""
    """Of code, the innermost outside of libraries."""


@dataclass
class Seen:
    """A rank's newest report, and for how many seconds it has not changed."""

    report: Report
    silent: float = 0.0
    still: float = 0.0


def find_hung(ranks: Sequence[Seen], seconds: float) -> list[Seen]:
    """Those that hold up the job: no sign of life for ``seconds``, or all stand still and these do not wait.

    Where all that stand still wait for each other, those that are behind; where none is, all.
    """
    silent = [r for r in ranks if r.silent >= seconds]
    if silent:
        return silent
    if any(r.still < seconds or r.report.patient for r in ranks):
        return []
    busy = [r for r in ranks if not r.report.waiting]
    suspects = busy if 0 < len(busy) < len(ranks) else list(ranks)
    behind = min(r.report.moves for r in suspects)
    return [r for r in suspects if r.report.moves == behind]


def describe_hung(hung: Sequence[Seen], size: int, seconds: float, remedy: str) -> GenoctxError:
    """The error that names them; ``remedy``: what to change where a rank was only slow, and what is left."""
    if len(hung) == size:
        first = hung[0].report
        return GenoctxError(
            f"all {size} ranks stand still for {seconds:g} s, waiting for each other; {_place(first)}",
            f"look at the network between the machines; {remedy}",
        )
    told = []
    for seen in hung:
        r = seen.report
        how = "gives no sign of life" if seen.silent >= seconds else "stands still"
        told.append(f"rank {r.rank} of {size} (process {r.process} on {r.host}) {how}; {_place(r)}")
    return GenoctxError(
        f"no rank has moved for {seconds:g} s: {'; '.join(told)}",
        f"look at that machine; {remedy}",
    )


def _place(report: Report) -> str:
    layer = f", layer {report.layer}" if report.layer >= 0 else ""
    return f"last seen in {report.where}{layer}" + (f", at {report.line}" if report.line else "")


class Watchdog:
    """Writes this rank's reports and reads the others', from ``with`` on.

    ``bite`` is called, on one rank, with the error that names those that hang, and with their reports.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        seconds: float,
        bite: Callable[[GenoctxError, Sequence[Report]], None],
        remedy: str,
    ) -> None:
        """``folder`` is there, empty, and shared by all ranks; ``seconds`` 0 writes reports and judges nobody."""
        self.report = Report(rank)
        self.folder, self.size, self.seconds, self.bite, self.remedy = folder, size, seconds, bite, remedy
        self.period = min(5.0, max(0.1, seconds / 10)) if seconds else 5.0
        self._seen: dict[int, Seen] = {}
        self._over = threading.Event()
        self._main = threading.get_ident()
        self._parent = os.getppid()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def at(self, where: str, *, patient: bool = False) -> None:
        """The rank has come to ``where``."""
        self.report.where, self.report.patient, self.report.layer = where[:_WHERE], patient, -1
        self.report.moves += 1

    def pulse(self) -> None:
        """The rank does something, at the same place."""
        self.report.pulse += 1

    def at_layer(self, layer: int) -> None:
        """The rank has come to a layer, of the chunk after the one it finished last."""
        self.report.layer = layer
        self.report.moves += 1

    def _watch(self) -> None:
        handle = os.open(self._file(self.report.rank), os.O_RDWR | os.O_CREAT)
        try:
            before = time.monotonic()
            self._write(handle)
            while not self._over.wait(self.period):
                self._write(handle)
                if os.getppid() != self._parent:  # whoever started the ranks cannot stop them any more
                    ask_to_stop("the end of its launcher")
                now = time.monotonic()
                # a thread that was stopped itself has seen nothing meanwhile
                self._look(min(now - before, 2 * self.period))
                before = now
        finally:
            os.close(handle)

    def _file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def _write(self, handle: int) -> None:
        report = self.report
        report.beat += 1
        frame = sys._current_frames().get(self._main)
        report.waiting, report.line = _is_waiting(frame), _own_line(frame)
        with suppress(OSError):
            os.pwrite(handle, packed(report), 0)

    def _look(self, passed: float) -> None:
        for rank in range(self.size):
            try:
                report = Report(**json.loads(self._file(rank).read_bytes()))
            except (OSError, ValueError, TypeError):  # not yet there, or half written
                report = None
            seen = self._seen.get(rank)
            if seen is None:
                if report is not None:
                    self._seen[rank] = Seen(report)
                continue
            old, new = seen.report, report or seen.report
            seen.silent = seen.silent + passed if new.beat == old.beat else 0.0
            at_rest = (new.moves, new.pulse) == (old.moves, old.pulse)
            seen.still = seen.still + passed if at_rest else 0.0
            seen.report = new
        if self.seconds and len(self._seen) == self.size:
            self._judge()

    def _judge(self) -> None:
        ranks = [self._seen[rank] for rank in range(self.size)]
        hung = find_hung(ranks, self.seconds)
        if not hung:
            return
        free = [r.report.rank for r in ranks if r not in hung] or [0]
        if min(free) == self.report.rank:  # the first rank that can speak does
            self._over.set()
            self.bite(
                describe_hung(hung, self.size, self.seconds, self.remedy), [seen.report for seen in hung]
            )


def packed(report: Report) -> bytes:
    """A report as JSON in exactly _BYTES; a place whose name takes too many of them is cut short."""
    words = asdict(report)
    while len(text := json.dumps(words, ensure_ascii=False).encode(errors="replace")) > _BYTES:
        longest = max(("where", "line", "host"), key=lambda key: len(words[key]))
        words[longest] = words[longest][: len(words[longest]) // 2]
    return text.ljust(_BYTES)


def _is_waiting(frame: FrameType | None) -> bool:
    for _ in range(_INNER):
        if frame is None:
            return False
        if f"{os.sep}torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _own_line(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if f"{os.sep}genoctx" in file and f"{os.sep}site-packages{os.sep}torch" not in file:
            return f"{Path(file).name}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return ""
