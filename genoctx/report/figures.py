"""The figures of a report, each an ``svg`` element made of the report's numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genoctx.report.formats import numbers
from genoctx.report.svg import BOTTOM, LEFT, RIGHT, Drawing, Plot, Scale, spread, ticks
from genoctx.sizes import format_size

BITS = "bits per base"
SQUARE = (340.0, 330.0)
ROW = 24.0


def forest(report: dict[str, Any]) -> str:
    """Every model of the main table with its interval, over A, C, G and T."""
    main = report["main"]["acgt"]
    rows: list[tuple[str, dict[str, Any], str]] = [
        (row["name"], row["bits"], "muted") for row in report["baselines"]
    ]
    rows += [(side, main[side], side) for side in ("before", "after") if main[side]]
    ends = [2.0, *(v for _, e, _ in rows for v in (e["value"], e["low"], e["high"]) if v is not None)]
    height = ROW * (len(rows) + 1) + BOTTOM + 12
    label, title = 96.0, "Bits per base of the model and of baselines, with intervals"
    plot = Plot("forest", title, spread(ends), (0, 1), size=(640, height), left=label)
    bottom = height - BOTTOM
    for value, text in ticks(plot.x.low, plot.x.high, 6):
        plot.line([(plot.x(value), 8), (plot.x(value), bottom)], "grid")
        plot.text((plot.x(value), bottom + 16), text, "middle", "tick")
    plot.line([(plot.x(2), 8), (plot.x(2), bottom)], "line ink dashed")
    plot.text((label - 8, 24), "uniform", "end", "tick")
    plot.dot((plot.x(2), 20), "fill ink")
    for i, (name, estimate, kind) in enumerate(rows, 1):
        y = 20 + ROW * i
        plot.text((label - 8, y + 4), name, "end", "tick")
        if estimate["low"] is not None:
            plot.line([(plot.x(estimate["low"]), y), (plot.x(estimate["high"]), y)], f"line {kind}")
        said = " ".join(numbers(estimate))
        plot.dot((plot.x(estimate["value"]), y), f"fill {kind}", 4, f"{name}: {said}")
    plot.text(
        ((label + 640 - RIGHT) / 2, height - 6),
        f"{BITS} over A, C, G, T (lower is better)",
        "middle",
        "label",
    )
    return plot.render()


def positions(found: dict[str, Any]) -> str:
    """Loss by how far into the window a base is read."""
    curves = {side: found[side] for side in ("before", "after") if found[side]}
    values = [row["bits"] for rows in curves.values() for row in rows]
    last = max(row["to"] for rows in curves.values() for row in rows)
    plot = Plot("positions", "Loss by position in the window", (1, last), spread(values), log=True)
    powers = [1 << shift for shift in range(0, last.bit_length() + 1, 3 if last > 4096 else 2)]
    marks = [(float(p), format_size(p)) for p in powers if p <= last]
    plot.axes(marks, ticks(plot.y.low, plot.y.high), "position in the window, bases", BITS)
    for side, rows in curves.items():
        points = [((row["from"] * row["to"]) ** 0.5, row["bits"]) for row in rows]
        plot.curve(points, side)
        for (x, y), row in zip(points, rows, strict=True):
            said = f"{side}, {row['from']:,}-{row['to']:,}: {y:.3f}, {row['bases']:,} bases"
            plot.dot(plot.at(x, y), f"fill {side}", 2.5, said)
    plot.legend([(side, side) for side in curves])
    return plot.render()


def scatter(blocks: dict[str, Any]) -> str:
    """Bits per base of every block before and after; below the diagonal is better."""
    low, high = spread([*blocks["before"], *blocks["after"]], 0.04)
    title = "Blocks before and after training"
    plot = Plot("scatter", title, (low, high), (low, high), size=SQUARE)
    marks = ticks(low, high)
    plot.axes(marks, marks, f"before, {BITS}", f"after, {BITS}")
    plot.line([plot.at(low, low), plot.at(high, high)], "line muted dashed")
    for before, after in zip(blocks["before"], blocks["after"], strict=True):
        plot.dot(plot.at(before, after), "fill after thin", 2)
    return plot.render()


def reliability(found: dict[str, Any]) -> str:
    """Share of hits against the probability given."""
    plot = Plot("reliability", "Reliability of the four probabilities", (0, 1), (0, 1), size=SQUARE)
    marks = ticks(0, 1)
    plot.axes(marks, marks, "probability given to a base", "share of hits")
    plot.line([plot.at(0, 0), plot.at(1, 1)], "line muted dashed")
    curves = {side: found[side]["bins"] for side in ("before", "after") if found[side]}
    most = max(row["count"] for bins in curves.values() for row in bins)
    for side, bins in curves.items():
        plot.curve([(row["probability"], row["hit_rate"]) for row in bins], side)
        for row in bins:
            said = f"{side}, {row['probability']:.3f}: {row['hit_rate']:.3f} of {row['count']:,}"
            radius = 1.5 + 4 * (row["count"] / most) ** 0.5
            plot.dot(plot.at(row["probability"], row["hit_rate"]), f"fill {side} thin", radius, said)
    plot.legend([(side, side) for side in curves])
    return plot.render()


def training_loss(found: dict[str, Any]) -> str:
    """Training loss by step, and the held-out points with their intervals."""
    points = [(row["step"], row["bits"]) for row in found["points"] if row["bits"] is not None]
    held = [row for row in found["held_out"] if row["step"] is not None]
    ends = [bits for _, bits in points] + [
        v
        for row in held
        for v in (row["bits"]["value"], row["bits"]["low"], row["bits"]["high"])
        if v is not None
    ]
    plot = _by_step("training-loss", "Loss in training and held out", found, ends, BITS)
    plot.curve(points, "before")
    for row in held:
        estimate, x = row["bits"], row["step"]
        if estimate["low"] is not None:
            plot.line([plot.at(x, estimate["low"]), plot.at(x, estimate["high"])], "line after")
        plot.dot(
            plot.at(x, estimate["value"]), "fill after", 3.5, f"step {x:,}: {' '.join(numbers(estimate))}"
        )
    plot.legend([("before", "training"), ("after", "held out")])
    return plot.render()


def training_rate(found: dict[str, Any]) -> str:
    """Scored bases per second by step."""
    points = [(row["step"], row["bases_per_s"]) for row in found["points"] if row["bases_per_s"]]
    return _from_zero("training-rate", "Bases per second in training", found, points, "bases per second")


def training_memory(found: dict[str, Any]) -> str:
    """Largest resident memory by step."""
    points = [
        (row["step"], row["host_peak_bytes"] / 2**30) for row in found["points"] if row["host_peak_bytes"]
    ]
    return _from_zero("training-memory", "Peak host memory in training", found, points, "GiB")


def _from_zero(
    name: str, title: str, found: dict[str, Any], points: Sequence[tuple[float, float]], y: str
) -> str:
    if not points:
        return ""
    plot = _by_step(name, title, found, [0.0, *(value for _, value in points)], y, from_zero=True)
    plot.curve(points, "after")
    for point in points if len(points) < 3 else ():
        plot.dot(plot.at(*point), "fill after", 2.5)
    return plot.render()


def _by_step(
    name: str,
    title: str,
    found: dict[str, Any],
    values: Sequence[float],
    y_label: str,
    from_zero: bool = False,
) -> Plot:
    low, high = spread(values)
    y = (0.0 if from_zero else low, high)
    plot = Plot(name, title, (0, found["steps"]), y, size=(460, 230), left=LEFT + 8)
    wanted = min(5, found["steps"])
    plot.axes(ticks(0, found["steps"], wanted), ticks(*y), "step", y_label)
    return plot


def interval_bar(estimate: dict[str, Any] | None, low: float, high: float, name: str) -> str:
    """One row's interval on a scale that its table shares, with zero marked where it is inside."""
    if estimate is None:
        return ""
    drawing = Drawing(name, 150, 14, f"{name}: {' '.join(numbers(estimate))}")
    x = Scale(low, high, 4, 146)
    if low <= 0 <= high:
        drawing.line([(x(0), 0), (x(0), 14)], "axis")
    kind = "after" if estimate["low"] is not None else "muted"
    if estimate["low"] is not None:
        drawing.line([(x(estimate["low"]), 7), (x(estimate["high"]), 7)], f"line {kind}")
    drawing.dot((x(estimate["value"]), 7), f"fill {kind}", 2.5)
    return drawing.render()
