"""A report as plain text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from genoctx.report.card import card
from genoctx.report.formats import LOSSES, METHODS, Estimate, interval, numbers, percent, remark
from genoctx.report.text_sections import sections

WIDTH = 80


def render_text(report: dict[str, Any]) -> str:
    """The report for people: ASCII but for names in it, no line over 80 columns, no trailing spaces."""
    parts = [_title(report), *_header(report), ""]
    parts += [line for warning in report["warnings"] for line in _wrap(f"WARNING: {warning}", "  ")]
    parts += [""] if report["warnings"] else []
    parts += [*_main(report), "", *_baselines(report), *_cross_validation(report), *_block_lengths(report)]
    parts += [*sections(report), "Notes"]
    for number, note in enumerate(report["notes"], 1):
        parts += _wrap(f"{number:2d}. {note}", "    ")
    return "\n".join(line.rstrip() for line in parts) + "\n"


def _title(report: dict[str, Any]) -> str:
    return "Held-out loss (NOT FOR QUOTING, see the warnings)\n" if report["gate"] else "Held-out loss\n"


def _header(report: dict[str, Any]) -> Iterator[str]:
    for name, text in card(report).items():
        yield from _wrap(f"{name:<12}{text}", " " * 12)


def _main(report: dict[str, Any]) -> Iterator[str]:
    level = f"{100 * report['method']['confidence']:g} % interval"
    yield "Bits per base: lower is better, a uniform guess over A, C, G, T has 2"
    yield f"{'':<24}{'bits':>10}  {level:<22}"
    for loss, label in LOSSES.items():
        row = report["main"][loss]
        yield label
        for quantity in ("before", "after", "difference"):
            if row[quantity] is not None:
                yield _line(
                    "  after - before" if quantity == "difference" else f"  {quantity}", row[quantity]
                )


def _line(label: str, estimate: Estimate) -> str:
    value, interval = numbers(estimate)
    return f"{label:<24}{value:>10}  {interval:<22}{remark(estimate)}"


def _baselines(report: dict[str, Any]) -> Iterator[str]:
    if not report["baselines"]:
        return
    yield "Baselines (A, C, G, T only)"
    yield f"{'  uniform':<24}{'2.000':>10}"
    for baseline in report["baselines"]:
        yield _line(f"  {baseline['name']}", baseline["bits"])
        yield _line(f"    after - {baseline['name']}", baseline["after_minus_baseline"])
    for share in report["share_of_gap"]:
        said = [f"{side} {percent(share[side])}" for side in ("before", "after") if share[side]]
        what = f"Share of the gap from uniform to {share['baseline']} closed: "
        yield from _wrap(what + (", ".join(said) or "the gap is too small to take a share of it"), "  ")
    yield ""


def _cross_validation(report: dict[str, Any]) -> Iterator[str]:
    cv = report["cross_validation"]
    if not cv:
        return
    yield f"Order by cross-validation on training data (chosen: {cv['order']})"
    yield "  order " + "".join(f"{order:>6}" for order in range(len(cv["bits"])))
    yield "  bits  " + "".join(f"{value:>6.3f}" for value in cv["bits"])
    yield ""


def _block_lengths(report: dict[str, Any]) -> Iterator[str]:
    """How the interval depends on the one thing that was chosen."""
    known = [row for row in report["block_lengths"] if row["half_width"] is not None]
    if not known:
        return
    of = "after - before" if report["main"]["full"]["difference"] else "after"
    yield f"Half width of the interval of {of} (full vocabulary) by block length"
    for row in known:
        yield f"  {row['block']:>10,} bases {row['blocks']:>7,} blocks {row['half_width']:>10.5f}"
    yield ""
    if report["intervals"]:
        yield f"Interval by method (A, C, G, T only; used here: {METHODS[report['main']['acgt']['after']['method']]})"
        for row in report["intervals"]:
            quantity = "after - before" if row["quantity"] == "difference" else row["quantity"]
            yield f"  {quantity:<16}{METHODS[row['method']]:<14}{interval(row['low'], row['high'])}"
        yield ""


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
