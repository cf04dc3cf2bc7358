"""Figures as inline SVG: scales, axes, lines, bands, dots. No script; colours are classes of the page's style.

Lengths are in the units of the drawing (a CSS pixel at natural size), y downwards. Numbers are written with
one decimal, so that a figure is the same text on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
Tick = tuple[float, str]
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 24.0, 40.0
"""Margins of a plot, for the labels of its axes."""


@dataclass(frozen=True)
class Scale:
    """From values ``low`` .. ``high`` to lengths ``start`` .. ``stop``, linear or by logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._moved(self.low), self._moved(self.high)
        share = (self._moved(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)

    def _moved(self, value: float) -> float:
        return math.log(value) if self.log else value


def ticks(low: float, high: float, wanted: int = 5) -> list[Tick]:
    """Round values in ``low`` .. ``high``, about ``wanted`` of them, with labels of equally many digits."""
    if not high > low:
        return [(low, f"{low:g}")]
    rough = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * (1 - 1e-9))
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(i * step, f"{i * step:,.{digits}f}") for i in range(first, last + 1)]


def spread(values: Iterable[float], margin: float = 0.06) -> tuple[float, float]:
    """The range of ``values`` and a little more, never of no length."""
    found = list(values)
    low, high = min(found), max(found)
    room = margin * (high - low) or 0.01 * max(abs(low), 0.1)
    return low - room, high + room


class Drawing:
    """Marks in the order they were added, under a title and a description for those who cannot see them."""

    def __init__(self, name: str, width: float, height: float, title: str, description: str = "") -> None:
        """``name`` must be the only one of its kind on the page."""
        self.name, self.width, self.height = name, width, height
        self._title, self._description = title, description
        self._marks: list[str] = []

    def line(self, points: Sequence[Point], kind: str) -> None:
        """A line through ``points``."""
        if len(points) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self._marks.append(f'<path class="{kind}" d="M{path}"/>')

    def band(self, upper: Sequence[Point], lower: Sequence[Point], kind: str) -> None:
        """The area between two lines from left to right."""
        if len(upper) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (*upper, *reversed(lower)))
            self._marks.append(f'<path class="{kind}" d="M{path}Z"/>')

    def dot(self, at: Point, kind: str, radius: float = 3, title: str = "") -> None:
        """A filled circle; ``title`` is shown under the pointer."""
        self._mark(
            f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}"', title, "circle"
        )

    def box(self, at: Point, width: float, height: float, kind: str, title: str = "") -> None:
        """A filled rectangle from its upper left corner."""
        shape = f'x="{at[0]:.1f}" y="{at[1]:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self._mark(f'<rect class="{kind}" {shape}', title, "rect")

    def _mark(self, opening: str, title: str, name: str) -> None:
        said = f"><title>{escape(title)}</title></{name}>" if title else "/>"
        self._marks.append(opening + said)

    def text(self, at: Point, text: str, anchor: str = "start", kind: str = "", turned: bool = False) -> None:
        """``anchor`` is start, middle or end; ``turned`` reads upwards."""
        x, y = at
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        style = f' class="{kind}"' if kind else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._marks.append(f"<text {place}{style}{turn}>{escape(text)}</text>")

    def render(self) -> str:
        """The ``svg`` element."""
        title, about = f"{self.name}-title", f"{self.name}-about"
        named = f'<title id="{title}">{escape(self._title)}</title>'
        if self._description:
            named += f'<desc id="{about}">{escape(self._description)}</desc>'
        told = f"{title} {about}" if self._description else title
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}" '
            f'role="img" aria-labelledby="{told}">{named}{"".join(self._marks)}</svg>'
        )


class Plot(Drawing):
    """A drawing with an x and a y axis over values."""

    def __init__(
        self,
        name: str,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        description: str = "",
        size: tuple[float, float] = (460, 270),
        log: bool = False,
        left: float = LEFT,
    ) -> None:
        """``x`` and ``y`` are ranges of values; ``log`` is of the x axis."""
        super().__init__(name, *size, title, description)
        self.x = Scale(*x, left, size[0] - RIGHT, log)
        self.y = Scale(*y, size[1] - BOTTOM, TOP)

    def at(self, x: float, y: float) -> Point:
        return self.x(x), self.y(y)

    def axes(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_label: str, y_label: str) -> None:
        """Grid lines, tick labels and names of both axes."""
        bottom, left = self.height - BOTTOM, self.x.start
        for value, text in y_ticks:
            self.line([(left, self.y(value)), (self.width - RIGHT, self.y(value))], "grid")
            self.text((left - 6, self.y(value) + 3.5), text, "end", "tick")
        for value, text in x_ticks:
            self.line([(self.x(value), bottom), (self.x(value), bottom + 4)], "axis")
            self.text((self.x(value), bottom + 16), text, "middle", "tick")
        self.line([(left, bottom), (self.width - RIGHT, bottom)], "axis")
        self.text(((left + self.width - RIGHT) / 2, self.height - 6), x_label, "middle", "label")
        self.text((12, (TOP + bottom) / 2), y_label, "middle", "label", turned=True)

    def curve(
        self, points: Sequence[Point], kind: str, bounds: Sequence[tuple[float, float]] | None = None
    ) -> None:
        """A line through values, with a band of the class ``band kind`` between ``bounds``."""
        if bounds:
            low, high = ([self.at(x, b[i]) for (x, _), b in zip(points, bounds, strict=True)] for i in (0, 1))
            self.band(high, low, f"band {kind}")
        self.line([self.at(*point) for point in points], f"line {kind}")

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """(class, text) of each kind of mark, in a row above the plot."""
        x = self.x.start
        for kind, text in entries:
            self.line([(x, 10), (x + 16, 10)], f"line {kind}")
            self.text((x + 21, 13.5), text, "start", "tick")
            x += 36 + 6.5 * len(text)
