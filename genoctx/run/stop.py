"""SIGINT and SIGTERM as a request: the loop ends at the next chunk, saves, and can be resumed."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any


class StopRequested(Exception):
    """Raised inside a step at a chunk's end; the step's gradients are thrown away."""


_asked: list[str] = []


def ask_to_stop(reason: str) -> None:
    """Ask this process to stop, from any of its threads and for good; as a signal would."""
    if not _asked:
        _asked.append(reason)


class StopSignals:
    """Context manager that turns signals and a time limit into :class:`StopRequested`.

    A second SIGINT interrupts at once. Outside of the main thread, where Python takes no signals, ``ask_to_stop``
    is left.
    """

    def __init__(self, max_seconds: float = 0.0) -> None:
        self.reason = ""
        self._deadline = time.monotonic() + max_seconds if max_seconds else None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name

    def wanted(self) -> bool:
        """Whether somebody asked, or the time is over."""
        if _asked:
            self.reason = self.reason or _asked[0]
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.reason = self.reason or "the time limit"
        return bool(self.reason)

    def check(self) -> None:
        """Raise StopRequested if a stop is wanted."""
        if self.wanted():
            raise StopRequested
