"""What a loop needs from whoever watches it: lines of talk and a progress line. No terminal in here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol


class Bar(Protocol):
    """A job in progress; ``done`` may be set when a part was counted only roughly."""

    done: float
    begin: float
    """What was done before this session; it does not count for the rate."""

    def advance(self, n: float = 1) -> None: ...

    def update(self, text: str) -> None: ...


class Monitor(Protocol):
    """``genoctx.cli.console.Console`` is one."""

    def info(self, text: str = "", *, level: int = 0) -> None: ...

    def warn(self, text: str) -> None: ...

    def log_to(self, path: Path) -> AbstractContextManager[None]: ...

    def progress(self, label: str, total: float | None, unit: str) -> AbstractContextManager[Bar]: ...


class Silent:
    """A Monitor that says nothing."""

    def info(self, text: str = "", *, level: int = 0) -> None: ...

    def warn(self, text: str) -> None: ...

    def log_to(self, path: Path) -> AbstractContextManager[None]:
        del path
        return nullcontext()

    def progress(self, label: str, total: float | None, unit: str) -> AbstractContextManager[Bar]:
        del label, total, unit
        return nullcontext(_SilentBar())


class _SilentBar:
    done: float = 0
    begin: float = 0

    def advance(self, n: float = 1) -> None: ...

    def update(self, text: str) -> None: ...
