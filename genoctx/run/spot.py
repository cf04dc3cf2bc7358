"""Where in a step a rank is, for the watchdog and for people."""

from __future__ import annotations


class Spot:
    """Windows, sweeps and chunks of one step, counted as they pass."""

    def __init__(self, step: int, windows: list[tuple[str, int]]) -> None:
        """``windows``: names and number of chunks of its micro-batches."""
        self.step, self.windows = step, windows
        self.window, self.done, self.sweep = 0, 0, "forward"

    def passed(self, sweep: str) -> None:
        """A chunk of ``sweep`` is done."""
        if sweep == "forward" and self.sweep == "backward":  # the window was taken up in the middle
            self.window = min(self.window + 1, len(self.windows) - 1)
        self.done = self.done + 1 if sweep == self.sweep else 1
        self.sweep = sweep
        if sweep == "backward" and self.done == self.windows[self.window][1]:
            self.window, self.done, self.sweep = self.window + 1, 0, "forward"

    def __str__(self) -> str:
        if self.window == len(self.windows):
            return f"step {self.step}: the optimizer's step"
        name, chunks = self.windows[self.window]
        window = name or "no window of its own"
        return f"step {self.step}: {window}, {self.sweep} sweep, {self.done} of {chunks} chunks done"
