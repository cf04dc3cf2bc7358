"""The tables of a text report that stand only where there are data for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from genoctx.report.formats import numbers
from genoctx.sizes import format_size

_NAME = 24
_GROUPS = {"all": "all bases", "novel": "novel", "seen": "seen before in the window"}


def sections(report: dict[str, Any]) -> Iterator[str]:
    """Lines of at most 80 columns, a blank one after each table."""
    yield from _table("By contig", "contig", report["contigs"], "contig", report)
    for facet in report["strata"]:
        yield from _table(facet["title"], facet["facet"], facet["rows"], "label", report)
    yield from _contexts(report)
    yield from _strands(report)
    yield from _calibration(report)
    yield from _extremes(report)


def _table(
    title: str, first: str, rows: list[dict[str, Any]], key: str, report: dict[str, Any]
) -> Iterator[str]:
    paired = report["main"]["acgt"]["difference"] is not None
    last = "after - before" if paired else "interval of after"
    yield f"{title} (A, C, G, T only; * few blocks)"
    yield f"{first:<{_NAME}}{'bases':>13} {'before':>6} {'after':>6}  {last}"
    for row in rows:
        loss = row["acgt"]
        before, after = numbers(loss["before"], most=3), numbers(loss["after"], most=3)
        change = " ".join(numbers(loss["difference"], most=4)) if paired else after[1]
        few = "*" if loss["after"]["method"] == "t" else ""
        name = _short(row[key])
        yield f"{name:<{_NAME}}{row['bases']:>13,} {before[0]:>6} {after[0]:>6}  {change}{few}"
    yield ""


def _short(name: str) -> str:
    return name if len(name) < _NAME else f"{name[: _NAME - 12]}..{name[-9:]}"


def _contexts(report: dict[str, Any]) -> Iterator[str]:
    found = report["contexts"]
    if not found:
        return
    shortest = format_size(found["contexts"][0])
    yield f"The same bases at more context (A, C, G, T only; difference to {shortest})"
    yield f"{'context':<12}{'bits':>8}  {'interval':<18}{'difference':>10}  interval"
    for curve in found["after"]:
        yield f"{_GROUPS[curve['group']]}: {curve['bases']:,} bases"
        for point in curve["points"]:
            value, interval = numbers(point["bits"], most=4)
            gained, band = numbers(point["difference"], most=4)
            yield f"  {format_size(point['context']):<10}{value:>8}  {interval:<18}{gained:>10}  {band}"
    yield ""


def _strands(report: dict[str, Any]) -> Iterator[str]:
    found = report["strands"]
    if not found:
        return
    yield "Both strands (A, C, G, T only)"
    for name, label in (("forward", "forward"), ("reverse", "reverse complement"), ("mean", "mean")):
        value, interval = numbers(found[name])
        yield f"  {label:<22}{value:>10}  {interval}"
    value, interval = numbers(found["gap"])
    sign = "" if value.startswith("-") else "+"
    yield f"  {'forward - reverse':<22}{sign + value:>10}  {interval}"
    yield ""


def _calibration(report: dict[str, Any]) -> Iterator[str]:
    found = report["calibration"]
    if not found:
        return
    yield "Expected calibration error (A, C, G, T only)"
    for side in ("before", "after"):
        if found[side]:
            yield f"  {side:<22}{found[side]['error']:>10.4f}  over {found[side]['bases']:,} bases"
    yield ""


def _extremes(report: dict[str, Any]) -> Iterator[str]:
    for name, title in (("worst", "Worst blocks"), ("best", "Best blocks")):
        blocks = report["extremes"][name]
        if not blocks:
            continue
        yield f"{title} (A, C, G, T only)"
        for block in blocks:
            place = f"{block['contig']}:{block['start']}-{block['end']}"
            change = "" if block["before"] is None else f"  before {block['before']:.3f}"
            yield f"  {_squeezed(place):<46}{block['after']:>7.3f}{change}"
        yield ""


def _squeezed(place: str) -> str:
    """The coordinates are kept whole."""
    return place if len(place) <= 45 else f"{place[:12]}..{place[-31:]}"
