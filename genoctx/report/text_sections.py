"""The tables of a text report that stand only where there are data for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from genoctx.report.formats import chance, interval, numbers
from genoctx.sizes import format_size

_NAME = 24
_GROUPS = {"all": "all bases", "novel": "novel", "seen": "seen before in the window"}


def sections(report: dict[str, Any]) -> Iterator[str]:
    """Lines of at most 80 columns, a blank one after each table."""
    yield from _table("By contig", "contig", report["contigs"], "contig", report)
    for facet in report["strata"]:
        yield from _table(facet["title"], facet["facet"], facet["rows"], "label", report)
    yield from _beside_baselines(report)
    yield from _contexts(report)
    yield from _tests(report)
    yield from _seeds(report)
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


def _beside_baselines(report: dict[str, Any]) -> Iterator[str]:
    """Contigs and strata with the best order and the adaptive baseline on the same bases."""
    tables = [("contig", "contig", report["contigs"])]
    tables += [(facet["facet"], "label", facet["rows"]) for facet in report["strata"]]
    tables = [table for table in tables if table[2][0]["baselines"]]
    if not tables:
        return
    yield "Beside baselines on the same bases (A, C, G, T only; a minus: better)"
    names = [baseline["name"] for baseline in tables[0][2][0]["baselines"]]
    columns = "".join(f"{name:>11}{'after -':>11}" for name in names)
    for first, key, rows in tables:
        yield f"{first:<{_NAME}}{'after':>7}{columns}"
        for row in rows:
            values = [numbers(row["acgt"]["after"], most=3)[0]]
            for baseline in row["baselines"]:
                values += [numbers(baseline[k], most=3)[0] for k in ("bits", "after_minus_baseline")]
            yield f"{_short(row[key]):<{_NAME}}{values[0]:>7}" + "".join(f"{v:>11}" for v in values[1:])
    yield ""


def _short(name: str) -> str:
    return name if len(name) < _NAME else f"{name[: _NAME - 12]}..{name[-9:]}"


def _contexts(report: dict[str, Any]) -> Iterator[str]:
    found = report["contexts"]
    if not found:
        return
    shortest = format_size(found["contexts"][0])
    yield f"The same bases at more context (A, C, G, T only; difference to {shortest})"
    yield from _curves(found["after"])
    if found["adaptive"]:
        yield "The adaptive baseline at the same contexts: what counting and copying gain"
        yield from _curves(found["adaptive"])
        yield from _minus_adaptive(found)


def _curves(curves: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'context':<12}{'bits':>8}  {'interval':<18}{'difference':>10}  interval"
    for curve in curves:
        yield f"{_GROUPS[curve['group']]}: {curve['bases']:,} bases"
        for point in curve["points"]:
            value, interval = numbers(point["bits"], most=4)
            gained, band = numbers(point["difference"], most=4)
            yield f"  {format_size(point['context']):<10}{value:>8}  {interval:<18}{gained:>10}  {band}"
    yield ""


def _minus_adaptive(found: dict[str, Any]) -> Iterator[str]:
    """The model minus the baseline, by context."""
    yield "After minus the adaptive baseline (a minus: the model is better)"
    yield f"{'context':<12}" + "".join(f"{curve['group']:>12}" for curve in found["after"])
    for i, context in enumerate(found["contexts"]):
        values = (numbers(curve["points"][i]["minus_adaptive"], most=4)[0] for curve in found["after"])
        yield f"  {format_size(context):<10}" + "".join(f"{value:>12}" for value in values)
    yield ""


def _tests(report: dict[str, Any]) -> Iterator[str]:
    for family in report["tests"] or ():
        yield f"Test of {family['family']} (A, C, G, T only)"
        yield f"{'':<{_NAME}}{'bits':>10}{'blocks':>9}{'p':>10}{'p, Holm':>10}"
        for row in family["rows"]:
            chances = f"{chance(row['p']):>10}{chance(row['p_holm']):>10}"
            yield f"{_short(row['name']):<{_NAME}}{row['bits']:>+10.5f}{row['blocks']:>9,}{chances}"
        yield ""


def _seeds(report: dict[str, Any]) -> Iterator[str]:
    found = report["seeds"]
    if not found:
        return
    yield "Over training seeds (A, C, G, T only); the report is on the first run"
    yield f"{'run':<{_NAME}}{'seed':>6} {'before':>7} {'after':>7}  after - before"
    for row in found["runs"]:
        before, after = (numbers(row[side], most=4)[0] for side in ("before", "after"))
        seed = "-" if row["seed"] is None else row["seed"]
        change = " ".join(numbers(row["difference"], most=4))
        yield f"{_short(row['run']):<{_NAME}}{seed:>6} {before:>7} {after:>7}  {change}"
    for row in found["over_runs"]:
        quantity = "after - before" if row["quantity"] == "difference" else row["quantity"]
        yield f"{quantity}: mean {row['mean']:.5f} {interval(row['low'], row['high'])}, {row['runs']} runs"
        within = "-" if row["within"] is None else f"{row['within']:.5f}"
        yield f"  {row['least']:.5f} to {row['most']:.5f}; sd over seeds {row['sd']:.5f}, error over blocks {within}"
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
