"""``--nproc``: this command again as several ranks of this machine, under torch's elastic agent.

The agent works in a thread of its own, so that signals come to this module: they go on to the ranks, which
save and stop together. A rank that dies ends the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from genoctx.errors import GenoctxError
from genoctx.run.launch import FOLDER, INTERRUPTED, first_word

_HINT = "the same command goes on from the last checkpoint"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ARE_KILLED = 3
"""So many signals, and the ranks are not asked any more."""


def start_local(arguments: Sequence[str], nproc: int, *, verbose: bool = False) -> None:
    """Run ``genoctx ARGUMENTS`` as ``nproc`` ranks until all of them are done.

    Raises the error that the ranks share (exit 75 after a stop on request, for example), or the one of the
    rank that failed, or one that names a rank which died without a word. KeyboardInterrupt after a second
    SIGINT.
    """
    with _workspace(nproc) as folder:
        agent = _Agent(arguments, nproc, verbose)
        with _Relay(folder) as relay:
            agent.start()
            while agent.is_alive():
                agent.join(0.1)
                relay.deliver()
        if (word := first_word(folder)) is not None:
            raise word
        if agent.failures:
            raise _death(agent.failures, nproc, relay.asked)
        if agent.error is not None:
            raise GenoctxError(f"cannot start {nproc} ranks: {agent.error}", "see -vv") from agent.error


@contextlib.contextmanager
def _workspace(nproc: int) -> Iterator[Path]:
    """Where the ranks leave word, and their share of the cores, both told by the environment."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="genoctx-ranks-") as folder:
        os.environ[FOLDER] = folder
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // nproc)))
        try:
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)


class _Relay:
    """Signals of this process, handed to every rank that is ready for them; to those not yet ready, later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[int] = []
        """Signals so far."""
        self._sent: dict[Path, int] = {}
        self._old: dict[int, Any] = {}

    def __enter__(self) -> _Relay:
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.asked.append(number)

    def deliver(self) -> None:
        """Send what has been asked and not been sent."""
        if len(self.asked) >= _ARE_KILLED:
            for file in self.folder.glob("started-*"):
                _send(file, signal.SIGKILL)
        for file in self.folder.glob("ready-*"):
            for number in self.asked[self._sent.get(file, 0) :]:
                _send(file, number)
                self._sent[file] = self._sent.get(file, 0) + 1


def _send(file: Path, number: int) -> None:
    """A signal to the process whose number is in ``file``."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(file.read_text()), number)


class _Agent(threading.Thread):
    """torch's elastic agent with ``nproc`` ranks, restarting none."""

    def __init__(self, arguments: Sequence[str], nproc: int, verbose: bool) -> None:
        super().__init__(name="ranks", daemon=True)
        self._arguments, self._nproc = arguments, nproc
        self.failures: Mapping[int, Any] = {}
        """By rank, those that ended with another exit code than 0."""
        self.error: Exception | None = None
        import torch.distributed.launcher.api  # noqa: F401  # makes the loggers that are silenced here

        if not verbose:  # the agent's own account of a death is a page long; ours is a line
            for name in list(logging.root.manager.loggerDict):
                if name.startswith("torch.distributed.elastic"):
                    logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def run(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._nproc,
            run_id=f"genoctx-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "genoctx", *self._arguments)
        except ChildFailedError as error:
            self.failures = error.failures
        except Exception as error:
            self.error = error


def _death(failures: Mapping[int, Any], nproc: int, asked: Sequence[int]) -> BaseException:
    """The error that names the rank that ended first; one that was killed before one that noticed."""

    def order(item: tuple[int, Any]) -> tuple[bool, float]:
        code = item[1].exitcode
        return not (code < 0 and code != -signal.SIGTERM), item[1].timestamp

    rank, failure = min(failures.items(), key=order)
    if asked.count(signal.SIGINT) > 1 or failure.exitcode == INTERRUPTED:
        return KeyboardInterrupt()
    if len(asked) >= _ARE_KILLED:
        return GenoctxError(f"killed by the third {signal.Signals(asked[-1]).name}", _HINT)
    if failure.exitcode >= 0:
        return GenoctxError(
            f"rank {rank} of {nproc} ended with exit code {failure.exitcode}; what it said is above", _HINT
        )
    name = signal.Signals(-failure.exitcode).name
    cause = "; the kernel kills so when memory runs out" if name == "SIGKILL" else ""
    return GenoctxError(
        f"rank {rank} of {nproc} (process {failure.pid}) was killed by {name}{cause}",
        f"checkpoints are intact: {_HINT}",
    )
