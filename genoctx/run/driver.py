"""The process that has started a run on a cluster: it keeps the terminal and the signals, the ranks the work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from genoctx.errors import GenoctxError, StoppedOnRequest
from genoctx.run.loop import Outcome
from genoctx.run.monitor import Monitor
from genoctx.run.relay import Message, Replay
from genoctx.run.stop import StopSignals

LISTEN_SECONDS = 0.2


class Line(Protocol):
    """The methods of a Desk (genoctx/run/desk.py) for the driver."""

    def take(self) -> list[Message]: ...

    def ask(self, reason: str) -> bool: ...

    def ending(self) -> GenoctxError | None: ...


def drive(
    line: Line, work: Callable[[], Outcome | None], monitor: Monitor, max_seconds: float = 0.0
) -> Outcome:
    """Let ``work`` start the ranks and wait for them, in a thread, and say what they say.

    A signal or the time limit asks them to save and stop. Raises the error that the run ended with:
    StoppedOnRequest after such a request, KeyboardInterrupt after a second SIGINT.
    """
    replay, worker = Replay(monitor), _Worker(work)
    try:
        with StopSignals(max_seconds) as stop:
            worker.start()
            while worker.is_alive():
                worker.join(LISTEN_SECONDS)
                replay.play_all(line.take())
                if stop.wanted() and not line.ask(stop.reason) and worker.is_alive():
                    raise StoppedOnRequest(
                        f"stopped by {stop.reason} while no ranks were running",
                        "the same command starts them",
                    )
        replay.play_all(line.take())
    finally:
        replay.close("interrupted")
    if (ending := line.ending()) is not None:
        raise ending
    if worker.outcome is not None:
        return worker.outcome
    error = worker.error or GenoctxError("the ranks ended without a result", "see -vv")
    monitor.info(str(error.__cause__ or error), level=2)
    raise replay.failure or error


class _Worker(threading.Thread):
    """``work``, and what became of it."""

    def __init__(self, work: Callable[[], Outcome | None]) -> None:
        super().__init__(name="ranks", daemon=True)
        self.outcome: Outcome | None = None
        self.error: Exception | None = None
        self._work = work

    def run(self) -> None:
        try:
            self.outcome = self._work()
        except Exception as error:
            self.error = error
