"""Processes that read files, a few at a time; they end with the process that started them."""

from __future__ import annotations

import os
import pickle
import selectors
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from genoctx.errors import GenoctxError
from genoctx.genome.reader import ReadOptions
from genoctx.genome.source import STDIN
from genoctx.genome.worker import DONE, FAILED


class _Worker:
    """One process and the number of the file it reads, if any."""

    def __init__(self, lock: int) -> None:
        self.index: int | None = None
        self.process = subprocess.Popen(
            # -P: a file of the user's folder must not stand in for a module
            [sys.executable, "-P", "-m", "genoctx.genome.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C is for the parent alone, which then ends its workers
        )

    @property
    def answers(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, index: int, folder: Path, path: str, options: ReadOptions) -> None:
        assert self.process.stdin is not None
        self.index = index
        with suppress(BrokenPipeError):  # it is dead: its answers end, too
            pickle.dump((folder, path, options), self.process.stdin)
            self.process.stdin.flush()

    def end(self) -> int:
        """Wait for the process; its status."""
        assert self.process.stdin is not None
        status = self.process.wait()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.answers.close()
        return status


class Workers:
    """Reads files into folders below ``folder``, ``jobs`` at a time, in their order. A context manager."""

    def __init__(
        self,
        paths: Sequence[str],
        options: ReadOptions,
        folder: Path,
        *,
        jobs: int,
        lock: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._paths, self._options, self._folder = paths, options, folder
        self._lock, self._progress = lock, progress
        self._to_hire = min(jobs, len(paths))
        self._team: list[_Worker] = []
        self._given = 0
        """Files that were given to a worker, or are none for one."""
        self._status: dict[int, int] = {}
        """Per file ``DONE`` or ``FAILED``."""
        self._events = selectors.DefaultSelector()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.close()
        for worker in self._team:
            worker.process.kill()
        for worker in self._team:
            worker.end()
        for index in range(self._given):
            self.discard(index)

    def wait(self, index: int) -> Path | None:
        """Wait for file ``index``; its folder, or None if no worker could read it (none tries '-').

        Raises GenoctxError if the worker was killed.
        """
        while index not in self._status:
            self._give()
            if not self._team:
                return None
            for key, _ in self._events.select():
                self._hear(key.data)
        return self._place(index) if self._status[index] == DONE else None

    def discard(self, index: int) -> None:
        """Remove what file ``index`` left."""
        shutil.rmtree(self._place(index), ignore_errors=True)

    def _place(self, index: int) -> Path:
        return self._folder / f"part-{index}"

    def _give(self) -> None:
        while self._given < len(self._paths):
            if self._paths[self._given] == STDIN:
                self._status[self._given] = FAILED
            else:
                worker = next((each for each in self._team if each.index is None), None) or self._hire()
                if worker is None:
                    return
                place = self._place(self._given)
                place.mkdir()
                worker.give(self._given, place, self._paths[self._given], self._options)
            self._given += 1

    def _hire(self) -> _Worker | None:
        if not self._to_hire:
            return None
        self._to_hire -= 1
        worker = _Worker(self._lock)
        self._team.append(worker)
        self._events.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def _hear(self, worker: _Worker) -> None:
        numbers = array("q", os.read(worker.answers.fileno(), 1 << 12))
        if not numbers:
            self._lose(worker)
        for number in numbers:
            if number > 0:
                if self._progress is not None:
                    self._progress(number)
            elif worker.index is not None:
                self._status[worker.index] = number
                worker.index = None

    def _lose(self, worker: _Worker) -> None:
        """``worker`` is dead. GenoctxError if it was killed."""
        self._events.unregister(worker.answers)
        self._team.remove(worker)
        status = worker.end()
        if worker.index is None:
            return
        if status < 0:
            raise GenoctxError(
                f"the process that read {self._paths[worker.index]} was killed by signal {-status}",
                "if it was for memory, give fewer --jobs",
            )
        self._status[worker.index] = FAILED
