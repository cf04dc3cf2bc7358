"""Ctrl-C, noted: an import that it cuts off may end in any error at all, which nobody should have to read."""

from __future__ import annotations

import signal

_signals: list[int] = []


def note_interrupts() -> None:
    """From now on ``came`` says whether SIGINT came; it raises KeyboardInterrupt as before, or is ignored as before."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def came() -> bool:
    """Whether SIGINT came since ``note_interrupts``."""
    return bool(_signals)


def _interrupt(number: int, frame: object) -> None:
    del frame
    _signals.append(number)
    raise KeyboardInterrupt
