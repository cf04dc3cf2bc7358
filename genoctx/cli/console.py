"""Everything genoctx says: stdout carries data, stderr carries talk.

``get_console()`` is the console of the running command, configured by the global options. Text is
never parsed for markup, so a contig called ``chr[1]`` prints as it is. rich is imported only where
colour or a live line is really used; logs and pipes get plain lines.
"""

from __future__ import annotations

import json as _json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from genoctx.cli import layout
from genoctx.cli.progress import Progress
from genoctx.errors import GenoctxError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


class Console:
    """Where a verb prints. Attributes may be set; ``get_console()`` hands out the current one."""

    def __init__(
        self,
        *,
        verbosity: int = 0,
        color: str = "auto",
        json: bool = False,
        progress: bool = True,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.verbosity = verbosity
        """-1 quiet, 0 normal, 1 verbose, 2 with tracebacks."""
        self.color = color
        self.json = json
        """The user asked for JSON: nothing but ``emit`` may write to stdout."""
        self.show_progress = progress
        self._stdout, self._stderr = stdout, stderr
        self._logs: list[TextIO] = []
        self._live: RichConsole | None = None

    @property
    def quiet(self) -> bool:
        return self.verbosity < 0

    @property
    def stdout(self) -> TextIO:
        return self._stdout or sys.stdout

    @property
    def stderr(self) -> TextIO:
        return self._stderr or sys.stderr

    # talk: stderr

    def info(self, text: str = "", *, level: int = 0) -> None:
        """One line of talk, shown from verbosity ``level`` up; log files get it in any case."""
        self._talk(text, shown=self.verbosity >= level)

    def warn(self, text: str) -> None:
        """Something the user should know but that does not stop the work."""
        self._talk(text, label="warning", style="bold yellow")

    def error(self, error: GenoctxError) -> None:
        """``error: ...`` and, where there is one, ``hint: ...``."""
        self._talk(error.message, label="error", style="bold red")
        if error.hint:
            self._talk(error.hint, label="hint", style="bold cyan")

    def progress(self, label: str, total: float | None, unit: str) -> Progress:
        """A context manager with ``advance(n)`` and ``update(text)``.

        One live line on a terminal; elsewhere one plain line every ten seconds with rate and ETA.
        """
        # a job inside a job that is on the screen already shows nothing of its own
        wanted = self.show_progress and not self.quiet and self._live is None
        live = wanted and is_terminal(self.stderr)
        return Progress(self, label, total, unit, live=live, lines=wanted and not live)

    # data: stdout

    def print(self, text: str = "") -> None:
        """One line of data. Under ``--json`` it becomes talk: stdout then carries JSON alone."""
        if self.json:
            self._talk(text, shown=not self.quiet)
        else:
            self.stdout.write(f"{text}\n")

    def emit(self, obj: Any) -> None:
        """One JSON object as one line on stdout."""
        self.stdout.write(_json.dumps(obj, allow_nan=False, default=_plain) + "\n")
        self.stdout.flush()

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, stdout: bool = False
    ) -> None:
        """A table: talk by default; with ``stdout=True`` data (tab-separated where stdout is a pipe)."""
        rows = [list(row) for row in rows]
        if not stdout or self.json:
            self._talk(layout.plain_table(title, columns, rows), shown=not self.quiet)
        elif is_terminal(self.stdout):
            self.stdout.write(layout.plain_table(title, columns, rows) + "\n")
        else:
            self.stdout.write(layout.tsv(columns, rows))

    # plumbing

    @contextmanager
    def log_to(self, path: Path) -> Iterator[None]:
        """Append every line of talk, uncoloured, to ``path`` as well (a run's ``train.log``).

        An error that ends the block is the log's last line; it is said to the user elsewhere.
        """
        with path.open("a", encoding="utf-8") as log:
            self._logs.append(log)
            try:
                yield
            except BaseException as error:
                with suppress(OSError):  # a full disk: the error itself matters more
                    log.write(f"ended: {str(error) or type(error).__name__}\n")
                    log.flush()
                raise
            finally:
                self._logs.remove(log)

    @contextmanager
    def live(self) -> Iterator[RichConsole]:
        """The rich console that talk goes through while a live line is on the screen."""
        self._live = self._rich()
        try:
            yield self._live
        finally:
            self._live = None

    def _talk(self, text: str, *, label: str = "", style: str = "", shown: bool = True) -> None:
        line = f"{label}: {text}" if label else text
        for log in self._logs:
            log.write(f"{line}\n")
            log.flush()
        if not shown:
            return
        if self._live is None and not (label and self._coloured()):
            self.stderr.write(f"{line}\n")
            self.stderr.flush()
            return
        from rich.text import Text

        styled = Text.assemble((f"{label}:", style), f" {text}") if label else Text(text)
        (self._live or self._rich()).print(styled, soft_wrap=True, highlight=False)

    def _coloured(self) -> bool:
        if self.color != "auto":
            return self.color == "always"
        # NO_COLOR counts when present and not empty (no-color.org)
        return is_terminal(self.stderr) and not os.environ.get("NO_COLOR")

    def _rich(self) -> RichConsole:
        from rich.console import Console as RichConsole

        # color_system None also drops bold, which rich keeps under no_color
        return RichConsole(
            file=self.stderr,
            force_terminal=is_terminal(self.stderr) or self.color == "always",
            color_system="auto" if self._coloured() else None,
            no_color=not self._coloured(),
        )


def is_terminal(stream: TextIO) -> bool:
    """A terminal that can move its cursor; ``TERM=dumb`` cannot."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # a closed stream
        return False


def _plain(value: Any) -> Any:
    """What json cannot write itself: numpy scalars and arrays, paths."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


_current = Console()


def get_console() -> Console:
    """The console of the running command."""
    return _current


def set_console(console: Console) -> Console:
    """Make ``console`` the current one (the app at start, tests); returns the previous one."""
    global _current
    previous, _current = _current, console
    return previous
