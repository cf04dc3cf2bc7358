"""Figures of the context curve: the model with solid lines, the adaptive baseline with dashed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genoctx.report.figures import BITS
from genoctx.report.formats import numbers
from genoctx.report.svg import LEFT, Plot, spread, ticks
from genoctx.sizes import format_size

SMALLEST_GAIN = 0.001
"""Bits: an axis of gains shows at least this much to both sides of zero."""
_KINDS = {"all": "ink", "novel": "after", "seen": "seen"}
_ZERO = {"value": 0.0, "low": 0.0, "high": 0.0}


def context_bits(found: dict[str, Any]) -> str:
    """Loss at every context, for all, novel and seen bases."""
    title = "Loss of the same bases at more context"
    return _contexts(found, "bits", "context-bits", title, BITS, ("after", "adaptive"))


def context_gain(found: dict[str, Any]) -> str:
    """The paired difference to the shortest context."""
    shortest = format_size(found["contexts"][0])
    title = f"Difference to a context of {shortest}, paired by block"
    return _contexts(found, "difference", "context-gain", title, _minus(shortest), ("after",))


def context_offer(found: dict[str, Any]) -> str:
    """The same beside that of the adaptive baseline, which may be on quite another scale; nothing without it."""
    if not found["adaptive"]:
        return ""
    shortest = format_size(found["contexts"][0])
    title = f"Difference to a context of {shortest}, of the model and of the adaptive baseline"
    sides = ("after", "adaptive")
    return _contexts(found, "difference", "context-offer", title, _minus(shortest), sides)


def _minus(shortest: str) -> str:
    return f"bits, minus those at {shortest}"


def _contexts(
    found: dict[str, Any], quantity: str, name: str, title: str, y_label: str, sides: Sequence[str]
) -> str:
    curves = [
        (side, curve["group"], [(p["context"], p[quantity] or _ZERO) for p in curve["points"]])
        for side in sides
        for curve in found[side] or ()
    ]
    values = [
        v for _, _, c in curves for _, e in c for v in (e["value"], e["low"], e["high"]) if v is not None
    ]
    if quantity == "difference":
        values += [-SMALLEST_GAIN, SMALLEST_GAIN]
    contexts = found["contexts"]
    x = (contexts[0] / 1.15, contexts[-1] * 1.15)
    plot = Plot(name, title, x, spread(values), log=True, left=LEFT + 14)
    marks = [(c, format_size(c)) for c in contexts]
    plot.axes(marks, ticks(plot.y.low, plot.y.high), "context, bases", y_label)
    if quantity == "difference":
        plot.line([plot.at(plot.x.low, 0), plot.at(plot.x.high, 0)], "axis")
    for side, group, curve in curves:
        _curve(plot, side, group, curve)
    legend = [(_KINDS[group], group) for side, group, _ in curves if side == "after"]
    dashed = [("ink dashed", "adaptive baseline")] if len(legend) < len(curves) else []
    plot.legend([*legend, *dashed])
    return plot.render()


def _curve(plot: Plot, side: str, group: str, curve: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """A band is drawn of the model alone, where all of its points have an interval."""
    kind, solid = _KINDS[group], side == "after"
    bounds = [(e["low"], e["high"]) for _, e in curve]
    known = solid and all(low is not None for low, _ in bounds)
    points = [(c, e["value"]) for c, e in curve]
    plot.curve(points, kind if solid else f"{kind} dashed", bounds if known else None)
    for context, estimate in curve:
        said = f"{group}, {format_size(context)}: {' '.join(numbers(estimate))}"
        title = said if solid else f"adaptive baseline, {said}"
        plot.dot(plot.at(context, estimate["value"]), f"fill {kind}{'' if solid else ' thin'}", 2.5, title)
