"""The genome ribbon: bits per base of every block along each contig, and their change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from genoctx.report.svg import Drawing, Scale, ticks

WIDTH, NAMES = 960.0, 150.0
STRIP, GAP = 14.0, 12.0
CLASSES = 9
MOST_CONTIGS = 24
"""Of many contigs those with most blocks are drawn, in their own order."""


def ribbon(blocks: dict[str, Any]) -> str:
    """A strip per contig, all to one scale in bases; below it one of the change where there is a before."""
    drawn = _contigs(blocks)
    paired = blocks["before"] is not None
    per_contig = STRIP * (2 if paired else 1) + GAP
    top = 40.0
    height = top + per_contig * len(drawn) + 36
    drawing = Drawing("ribbon", WIDTH, height, "Bits per base of every block along the held-out contigs")
    reach = max(max(blocks["end"][i] for i in rows) - blocks["start"][rows[0]] + 1 for rows in drawn.values())
    low, high = _range([blocks["after"][i] for rows in drawn.values() for i in rows])
    change = max(abs(value) for value in _changes(blocks)) if paired else 0.0
    _legend(drawing, 0, f"{low:.2f}", f"{high:.2f} bits", "seq")
    if paired:
        _legend(drawing, 330, f"-{change:.2g}", f"+{change:.2g} bits after - before", "div")
    for row, (contig, places) in enumerate(drawn.items()):
        y = top + per_contig * row
        first = blocks["start"][places[0]]
        x = Scale(first, first + reach, NAMES, WIDTH - 6)
        drawing.text((NAMES - 8, y + STRIP - 3), _short(contig), "end", "tick")
        drawing.text((NAMES - 8, y + STRIP + 10), f"from {first / 1e6:,.2f} Mb", "end", "fine")
        for left, width, after, before, place in _cells(blocks, places, x):
            kind = f"seq{_class(after, low, high)}"
            drawing.box((left, y), width, STRIP, kind, f"{place}: {after:.3f} bits")
            if before is not None:
                moved = after - before
                kind = f"div{_class(moved, -change, change)}"
                drawing.box((left, y + STRIP), width, STRIP - 4, kind, f"{place}: {moved:+.4f} bits")
    bottom = height - 22
    x = Scale(0, reach / 1e6, NAMES, WIDTH - 6)
    drawing.line([(NAMES, bottom - 6), (WIDTH - 6, bottom - 6)], "axis")
    for value, text in ticks(0, reach / 1e6, 8):
        drawing.line([(x(value), bottom - 6), (x(value), bottom - 2)], "axis")
        drawing.text((x(value), bottom + 11), f"{text} Mb", "middle", "tick")
    return drawing.render()


def left_out(blocks: dict[str, Any]) -> int:
    """Contigs that the ribbon does not draw."""
    return len(set(blocks["contig"])) - len(_contigs(blocks))


def _contigs(blocks: dict[str, Any]) -> dict[str, list[int]]:
    """Indices of the blocks of each contig that is drawn."""
    rows: dict[str, list[int]] = {}
    for i, contig in enumerate(blocks["contig"]):
        rows.setdefault(contig, []).append(i)
    kept = set(sorted(rows, key=lambda name: (-len(rows[name]), name))[:MOST_CONTIGS])
    return {name: places for name, places in rows.items() if name in kept}


def _cells(
    blocks: dict[str, Any], places: list[int], x: Scale
) -> Iterator[tuple[float, float, float, float | None, str]]:
    """Left edge, width, bits after and before, and place; blocks under one unit of length share a cell."""
    group: list[int] = []
    for i in places:
        if group and int(x(blocks["start"][i])) != int(x(blocks["start"][group[0]])):
            yield _cell(blocks, group, x)
            group = []
        group.append(i)
    yield _cell(blocks, group, x)


def _cell(
    blocks: dict[str, Any], group: list[int], x: Scale
) -> tuple[float, float, float, float | None, str]:
    start, end = blocks["start"][group[0]], blocks["end"][group[-1]]
    left, width = x(start), max(0.8, x(end + 1) - x(start))
    bases = [blocks["bases"][i] for i in group]

    def mean(column: str) -> float:
        return float(sum(blocks[column][i] * n for i, n in zip(group, bases, strict=True)) / sum(bases))

    before = mean("before") if blocks["before"] is not None else None
    return left, width, mean("after"), before, f"{blocks['contig'][group[0]]}:{start}-{end}"


def _changes(blocks: dict[str, Any]) -> list[float]:
    return [a - b for a, b in zip(blocks["after"], blocks["before"], strict=True)]


def _range(values: list[float]) -> tuple[float, float]:
    """All but the outermost 2 %: one odd block must not turn all others into one colour."""
    ordered = sorted(values)
    cut = len(ordered) // 50
    return ordered[cut], ordered[-1 - cut]


def _class(value: float, low: float, high: float) -> int:
    share = (value - low) / (high - low) if high > low else 0.5
    return min(CLASSES - 1, max(0, int(share * CLASSES)))


def _legend(drawing: Drawing, left: float, low: str, high: str, kind: str) -> None:
    start = NAMES + left
    drawing.text((start, 16), low, "start", "tick")
    for i in range(CLASSES):
        drawing.box((start + 44 + 14 * i, 6), 14, 12, f"{kind}{i}")
    drawing.text((start + 50 + 14 * CLASSES, 16), high, "start", "tick")


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:9]}..{name[-9:]}"
