"""What the driver of a run and its ranks leave for each other, where processes cannot send signals or raise.

One Desk is shared by all: an actor under Ray (genoctx/run/ray_train.py). Ranks come in *attempts*: when one
dies, all are started again, and what the others still say is not heard any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from genoctx.errors import GenoctxError
from genoctx.run.relay import BEGIN, FAILED, Message


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks."""

    number: int
    fresh: bool
    """Whether a run that is there is to be removed first; never a run of an earlier attempt."""


class Desk:
    """Every method may be called from any process."""

    def __init__(self, fresh: bool) -> None:
        self._fresh = fresh
        self._attempt = 0
        self._running = False
        self._messages: list[Message] = []
        self._reason = ""
        self._ending: GenoctxError | None = None

    # for ranks

    def begin(self) -> Attempt | None:
        """A new attempt, asked for by its first rank; None when the run is over."""
        if self._ending is not None:
            return None
        self._attempt += 1
        self._running = True
        self._messages.append((BEGIN, self._attempt, ()))
        return Attempt(self._attempt, self._fresh)

    def send(self, attempt: int, message: Message) -> None:
        """What the first rank says to the user."""
        if not self._running or attempt != self._attempt:
            return
        if message[0] == "log_to":  # the run directory is there
            self._fresh = False
        self._messages.append(message)

    def asked(self) -> str:
        """Why the ranks are to save and stop; empty while they are not."""
        return self._reason

    def end(self, error: GenoctxError) -> None:
        """The run ends with ``error``; no attempt can change that. The first one counts."""
        self._ending = self._ending or error

    # for whoever watches the ranks

    def failed(self, error: GenoctxError) -> None:
        """The attempt has failed; ``error`` names the rank."""
        if self._running:
            self._running = False
            self._messages.append((FAILED, self._attempt, (error,)))

    # for the driver

    def take(self) -> list[Message]:
        """All messages since the last call, oldest first."""
        taken, self._messages = self._messages, []
        return taken

    def ask(self, reason: str) -> bool:
        """Ask the ranks to save and stop; False when there are none."""
        self._reason = self._reason or reason
        return self._running

    def ending(self) -> GenoctxError | None:
        """The error given to ``end``."""
        return self._ending
