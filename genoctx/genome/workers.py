"""Processes that read one file each, a few at a time; they end with the process that started them."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from genoctx.errors import GenoctxError
from genoctx.genome.reader import ReadOptions
from genoctx.genome.source import STDIN
from genoctx.genome.worker import write_task


class Workers:
    """Reads files into folders below ``folder``, up to ``jobs`` at a time. A context manager."""

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
        self._jobs, self._lock, self._progress = jobs, lock, progress
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._status: dict[int, int] = {}
        self._begun = 0
        self._events = selectors.DefaultSelector()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
            self._close(process)
        for index in range(self._begun):
            self.discard(index)
        self._events.close()

    def wait(self, index: int) -> Path | None:
        """Wait for file ``index``; its folder, or None if it could not be read (standard input never is).

        Raises GenoctxError if the worker was killed.
        """
        while index not in self._status:
            self._start()
            for key, _ in self._events.select():
                self._hear(key.data)
        status = self._status[index]
        if status < 0:
            raise GenoctxError(
                f"the process that read {self._paths[index]} was killed by signal {-status}",
                "if it was for memory, give fewer --jobs",
            )
        return None if status else self._place(index)

    def discard(self, index: int) -> None:
        """Remove what file ``index`` left."""
        shutil.rmtree(self._place(index), ignore_errors=True)

    def _place(self, index: int) -> Path:
        return self._folder / f"part-{index}"

    def _start(self) -> None:
        while self._begun < len(self._paths) and len(self._running) < self._jobs:
            index, self._begun = self._begun, self._begun + 1
            if self._paths[index] == STDIN:
                self._status[index] = 1
                continue
            self._place(index).mkdir()
            write_task(self._place(index), self._paths[index], self._options)
            process = subprocess.Popen(
                # -P: a file of the user's folder must not stand in for a module
                [sys.executable, "-P", "-m", "genoctx.genome.worker", str(self._place(index))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C is for the parent alone, which then ends its workers
            )
            self._running[index] = process
            assert process.stdout is not None
            self._events.register(process.stdout, selectors.EVENT_READ, index)

    def _hear(self, index: int) -> None:
        """Pass on what worker ``index`` reports; at the end of it take its status."""
        process = self._running[index]
        assert process.stdout is not None
        sizes = array("q", os.read(process.stdout.fileno(), 1 << 12))
        if not sizes:
            self._status[index] = process.wait()
            del self._running[index]
            self._close(process)
        elif self._progress is not None:
            self._progress(sum(sizes))

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._events.unregister(process.stdout)
        process.stdout.close()
