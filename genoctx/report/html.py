"""A report as one HTML file: no script, nothing loaded from elsewhere, light, dark and on paper."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from genoctx.report import context_figures, figures, ribbon
from genoctx.report.card import card, leakage
from genoctx.report.formats import LOSSES, METHODS, chance, interval, numbers, percent, remark
from genoctx.sizes import format_size

TEMPLATE = "report.html.j2"
_GROUPS = {"all": "all bases", "novel": "novel", "seen": "seen before in the window"}


def render_html(report: dict[str, Any]) -> str:
    """The page. Names of contigs and files are escaped; sections without data are not there."""
    leaking = any(reason.startswith("leakage") for reason in report["gate"])
    return _template().render(
        report=report,
        card=card(report),
        leaking=leakage(report["header"]["leakage"]) if leaking else "",
        losses=LOSSES,
        figures=_figures(report),
        tables=_tables(report),
        groups=_GROUPS,
        left_out=ribbon.left_out(report["blocks"]),
    )


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "estimate": lambda estimate: _minus(numbers(estimate)[0]),
        "interval": lambda estimate: _minus(numbers(estimate)[1]) if estimate["low"] is not None else "",
        "percent": lambda estimate: _minus(percent(estimate)),
        "remark": remark,
        "size": format_size,
        "bounds": lambda row: _minus(interval(row["low"], row["high"])),
        "chance": chance,
        "method": lambda name: METHODS[name],
        "bits": _bits,
        "group": lambda number: f"{number:,}",
    }
    return environment.get_template(TEMPLATE)


def _bits(value: float, form: str = ".5f") -> str:
    return _minus(f"{value:{form}}")


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _figures(report: dict[str, Any]) -> dict[str, Markup]:
    """The figures that there are data for; all of their text is escaped where it is drawn."""
    contexts, training, blocks = report["contexts"], report["training"], report["blocks"]
    drawn = {"forest": figures.forest(report), "ribbon": ribbon.ribbon(blocks)}
    if blocks["before"] is not None and len(blocks["before"]) > 1:
        drawn["scatter"] = figures.scatter(blocks)
    if contexts:
        drawn["context_bits"] = context_figures.context_bits(contexts)
        drawn["context_gain"] = context_figures.context_gain(contexts)
        drawn["context_offer"] = context_figures.context_offer(contexts)
    if report["positions"]:
        drawn["positions"] = figures.positions(report["positions"])
    if report["calibration"]:
        drawn["reliability"] = figures.reliability(report["calibration"])
    if training:
        drawn["training_loss"] = figures.training_loss(training)
        drawn["training_rate"] = figures.training_rate(training)
        drawn["training_memory"] = figures.training_memory(training)
    return {name: Markup(svg) for name, svg in drawn.items() if svg}


def _tables(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Contigs and strata: rows with their interval as a small drawing on a scale of the table's own."""
    found = [{"facet": "contig", "title": "By contig", "rows": report["contigs"], "key": "contig"}]
    found += [{**facet, "key": "label"} for facet in report["strata"]]
    for table in found:
        quantity = "difference" if report["main"]["acgt"]["difference"] else "after"
        estimates = [row["acgt"][quantity] for row in table["rows"]]
        ends = [e[k] for e in estimates if e for k in ("value", "low", "high") if e[k] is not None]
        if quantity == "difference":
            ends.append(0.0)
        low, high = min(ends, default=0.0), max(ends, default=1.0)
        room = 0.05 * (high - low) or 0.01
        table["bars"] = [
            Markup(figures.interval_bar(estimate, low - room, high + room, f"{table['facet']}-{i}"))
            for i, estimate in enumerate(estimates)
        ]
        table["quantity"] = quantity
        table["baselines"] = [baseline["name"] for baseline in table["rows"][0]["baselines"]]
    return found
