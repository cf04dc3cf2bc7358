"""One live line on a terminal, one plain line every ten seconds elsewhere; never a bar in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from genoctx.cli.layout import duration, number

if TYPE_CHECKING:
    from genoctx.cli.console import Console

INTERVAL_S = 10.0


class Progress:
    """How far one job is. Use as a context manager: ``with console.progress(...) as bar``."""

    def __init__(
        self,
        console: Console,
        label: str,
        total: float | None,
        unit: str,
        *,
        live: bool,
        lines: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done: float = 0
        self.begin: float = 0
        """What was done before this session; it does not count for the rate."""
        self.text = ""
        self._console, self._live, self._lines, self._clock = console, live, lines, clock
        self._stack = ExitStack()
        self._bar: Any = None
        self._task: Any = None
        self._start = self._last = clock()

    def advance(self, n: float = 1) -> None:
        """``n`` more units are done."""
        self.done += n
        self._show()

    def update(self, text: str) -> None:
        """Show ``text`` (a loss, a file name) behind the counts."""
        self.text = text
        self._show()

    def line(self) -> str:
        """The state in one plain line: ``sweep: 12/40 windows (30%), 1.20 windows/s, ETA 0:23``."""
        of = f"/{number(self.total)}" if self.total else ""
        share = f" ({100 * self.done / self.total:.0f}%)" if self.total else ""
        parts = [f"{self.label}: {number(self.done)}{of} {self.unit}{share}"]
        elapsed = self._clock() - self._start
        if self.done > self.begin and elapsed > 0:
            rate = (self.done - self.begin) / elapsed
            parts.append(f"{number(rate)} {self.unit}/s" if rate >= 0.1 else f"{1 / rate:.1f} s each")
            if self.total and self.total > self.done:
                parts.append(f"ETA {duration((self.total - self.done) / rate)}")
        return ", ".join([*parts, *([self.text] if self.text else [])])

    def __enter__(self) -> Progress:
        self._start = self._last = self._clock()
        if self._live:
            self._enter_live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        # a job that was shown at all ends with its totals; a short one stays silent
        if self._lines and kind is None and self._last > self._start:
            self._console.info(f"{self.line()}, took {duration(self._clock() - self._start)}")

    def _show(self) -> None:
        now = self._clock()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, status=self.line())
        elif self._lines and now - self._last >= INTERVAL_S:
            self._last = now
            self._console.info(self.line())

    def _enter_live(self) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        rich_console = self._stack.enter_context(self._console.live())
        status = TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True))
        columns = [BarColumn(bar_width=16), status] if self.total else [status]
        bar = RichProgress(*columns, console=rich_console, transient=True, refresh_per_second=4)
        self._bar = self._stack.enter_context(bar)
        self._task = bar.add_task(self.label, total=self.total, status=self.line())
        self._stack.callback(self._forget_bar)

    def _forget_bar(self) -> None:
        self._bar = None
