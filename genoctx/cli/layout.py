"""Numbers, durations and tables as text; no terminal here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def number(value: float) -> str:
    """A count for people: ``950``, ``12.3k``, ``1.05M``, ``3.10G``."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            scaled = value / limit
            return f"{scaled:.{0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2}f}{letter}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def duration(seconds: float) -> str:
    """``0:42``, ``3:05``, ``2:07:09``; days are spelled ``1d 02:00:00``."""
    whole = max(0, round(seconds))
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d {h:02d}:{m:02d}:{s:02d}"
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m}:{s:02d}"


def cell(value: Any) -> str:
    """One table cell for people: thousands separators, four significant digits, ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """An aligned table without boxes, numbers to the right; no line ends in spaces."""
    texts = [[cell(v) for v in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in texts)]) for i, name in enumerate(columns)]
    right = [any(_is_number(row[i]) for row in rows) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    head = [title] if title else []
    return "\n".join([*head, line(columns), line(["-" * w for w in widths]), *map(line, texts)])


def tsv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The table as data: tab-separated, a ``#`` header, numbers in full."""
    lines = ["#" + "\t".join(columns)]
    lines += ["\t".join("." if v is None else str(v) for v in row) for row in rows]
    return "\n".join(lines) + "\n"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
