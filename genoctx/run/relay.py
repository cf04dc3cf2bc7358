"""A Monitor in one process, and the one in another process that its lines are for.

``Relay`` turns what a loop says into messages that can be pickled; ``Replay`` says them. How messages travel
is the caller's affair (genoctx/run/ray_train.py).
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from genoctx.errors import GenoctxError
from genoctx.run.monitor import Bar, Monitor

Message = tuple[str, int, tuple[Any, ...]]
"""What to call, on which of the jobs that were opened (0 where that does not matter), with what."""
BEGIN, FAILED = "begin", "failed"
"""Two more messages: the ranks were started for the n-th time; they were lost, and why."""
FOLDER_SECONDS = 30.0
"""So late a folder that another node has made may be seen on a network file system."""
BAR_SECONDS = 0.2
"""A bar is shown a few times a second; a chunk may be much shorter."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class Relay:
    """A Monitor that hands every call to ``send``."""

    def __init__(self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._opened = 0

    def info(self, text: str = "", *, level: int = 0) -> None:
        self._send(("info", 0, (text, level)))

    def warn(self, text: str) -> None:
        self._send(("warn", 0, (text,)))

    @contextlib.contextmanager
    def log_to(self, path: Path) -> Iterator[None]:
        with self._open("log_to", path):
            yield

    @contextlib.contextmanager
    def progress(self, label: str, total: float | None, unit: str) -> Iterator[Bar]:
        with self._open("progress", label, total, unit) as number:
            bar = _RelayedBar(lambda state: self._send(("bar", number, state)), self._clock)
            yield bar
            bar.show()

    @contextlib.contextmanager
    def _open(self, name: str, *arguments: Any) -> Iterator[int]:
        self._opened += 1
        number = self._opened
        self._send((name, number, arguments))
        ending = ""
        try:
            yield number
        except BaseException as error:
            ending = str(error) or type(error).__name__
            raise
        finally:
            self._send(("close", number, (ending,)))


class _RelayedBar:
    """A Bar whose state is sent now and then, and at its end."""

    done: float = 0
    begin: float = 0

    def __init__(self, send: Callable[[tuple[float, float, str]], None], clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._text = ""
        self._sent = clock()

    def advance(self, n: float = 1) -> None:
        self.done += n
        self._now_and_then()

    def update(self, text: str) -> None:
        self._text = text
        self._now_and_then()

    def _now_and_then(self) -> None:
        if self._clock() - self._sent >= BAR_SECONDS:
            self.show()

    def show(self) -> None:
        """Send the state as it is."""
        self._sent = self._clock()
        self._send((self.done, self.begin, self._text))


class Chatter(io.TextIOBase):
    """A stdout for what a library prints in this process: lines of talk, shown with -vv."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def write(self, text: str) -> int:
        for line in _COLOUR.sub("", text).splitlines():
            if line.strip():
                self._monitor.info(line, level=2)
        return len(text)


class Replay:
    """Says to ``monitor`` what Relays sent, one after the other."""

    def __init__(self, monitor: Monitor) -> None:
        self.failure: GenoctxError | None = None
        """Why the last Relay went away, if it did not come to its end."""
        self._monitor = monitor
        self._open: dict[int, tuple[AbstractContextManager[Any], Any]] = {}
        """Logs and bars in use, in the order in which they were opened."""

    def play_all(self, messages: Iterable[Message]) -> None:
        """Make the calls that ``messages`` stand for."""
        for message in messages:
            self._play(message)

    def _play(self, message: Message) -> None:
        name, number, arguments = message
        if name == "info":
            self._monitor.info(arguments[0], level=arguments[1])
        elif name == "warn":
            self._monitor.warn(*arguments)
        elif name == "log_to":
            _wait_for(arguments[0].parent)
            self._enter(number, self._monitor.log_to(*arguments))
        elif name == "progress":
            self._enter(number, self._monitor.progress(*arguments))
        elif name == "bar":
            bar = self._open[number][1]
            bar.done, bar.begin, text = arguments
            bar.update(text)
        elif name == "close":
            self._leave(number, arguments[0])
        elif name == FAILED:
            self.failure = arguments[0]
            self.close(self.failure.message)
        elif number > 1:
            cause = self.failure.message if self.failure else "the ranks were lost"
            self._monitor.warn(f"{cause}; start {number} of the ranks goes on from the last checkpoint")

    def close(self, ending: str) -> None:
        """Close what a process that is gone left open; ``ending`` says what became of it."""
        for number in reversed(list(self._open)):
            self._leave(number, ending)

    def _enter(self, number: int, context: AbstractContextManager[Any]) -> None:
        self._open[number] = (context, context.__enter__())

    def _leave(self, number: int, ending: str) -> None:
        context, _ = self._open.pop(number)
        if not ending:
            context.__exit__(None, None, None)
            return
        error = GenoctxError(ending)
        with contextlib.suppress(GenoctxError):
            context.__exit__(GenoctxError, error, None)


def _wait_for(folder: Path) -> None:
    deadline = time.monotonic() + FOLDER_SECONDS
    while not folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.1)
