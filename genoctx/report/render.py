"""A report as plain text of 80 columns, and as tab-separated rows."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genoctx.files import write_atomic

WIDTH = 80
LOSSES = {"full": "full vocabulary", "acgt": "A, C, G, T only"}
_COLUMNS = ("section", "row", "loss", "quantity", "value", "low", "high", "method", "blocks", "bases")
TSV_COLUMNS = (*_COLUMNS, "better", "worse")

_Row = dict[str, Any]


def render_text(report: dict[str, Any]) -> str:
    """The report for people: ASCII but for names in it, no line over 80 columns, no trailing spaces."""
    parts = [_title(report), *_header(report), ""]
    parts += [line for warning in report["warnings"] for line in _wrap(f"WARNING: {warning}", "  ")]
    parts += [""] if report["warnings"] else []
    parts += [*_main(report), "", *_baselines(report), *_cross_validation(report), *_contigs(report), "Notes"]
    for number, note in enumerate(report["notes"], 1):
        parts += _wrap(f"{number:2d}. {note}", "    ")
    return "\n".join(line.rstrip() for line in parts) + "\n"


def render_tsv(report: dict[str, Any]) -> str:
    """One number a row under a ``#`` header; ``.`` stands for what is not there."""
    lines = ["#" + "\t".join(TSV_COLUMNS)]
    for section, row, loss, quantity, estimate in _estimates(report):
        found = {"section": section, "row": row, "loss": loss, "quantity": quantity, **estimate}
        lines.append("\t".join(_field(found.get(name)) for name in TSV_COLUMNS))
    return "\n".join(lines) + "\n"


def render_json(report: dict[str, Any]) -> str:
    """The report as indented JSON."""
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def save_report(report: dict[str, Any], directory: str | Path) -> list[Path]:
    """Write report.json, report.txt and report.tsv into ``directory``, over older ones; returns the paths."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    renderers = {"json": render_json, "txt": render_text, "tsv": render_tsv}
    paths = []
    for ending, render in renderers.items():
        paths.append(directory / f"report.{ending}")
        write_atomic(paths[-1], render(report))
    return paths


def decimals(estimate: _Row) -> int:
    """Digits behind the point that the interval supports: two of its half width, at least 3, at most 5."""
    if estimate["low"] is None:
        return 3
    half_width = (estimate["high"] - estimate["low"]) / 2
    return 5 if half_width <= 0 else min(5, max(3, 1 - math.floor(math.log10(half_width))))


def _numbers(estimate: _Row | None, most: int = 5) -> tuple[str, str]:
    """Value and interval as text, to at most ``most`` decimals; differences carry their sign."""
    if estimate is None:
        return "-", "-"
    form = f"{'+' if 'better' in estimate else ''}.{min(most, decimals(estimate))}f"
    value = f"{estimate['value']:{form}}"
    if estimate["low"] is None:
        return value, "-"
    return value, f"[{estimate['low']:{form}}, {estimate['high']:{form}}]"


def _remark(estimate: _Row) -> str:
    if "better" in estimate:
        return f"{estimate['better']} better, {estimate['worse']} worse"
    return {"t": "few blocks", "none": "too few blocks"}.get(estimate["method"], "")


def _title(report: dict[str, Any]) -> str:
    return "Held-out loss (NOT FOR QUOTING, see the warnings)\n" if report["gate"] else "Held-out loss\n"


def _header(report: dict[str, Any]) -> Iterator[str]:
    header, after = report["header"], report["header"]["after"]
    before = header["before"]
    step = _said(after.get("step")) + (f" (before: {_said(before.get('step'))})" if before else "")
    excluded = "; ".join(f"{n:,} {reason}" for reason, n in header["excluded"].items()) or "none"
    contigs = header["contigs"]
    named = ", ".join(contigs[:4]) + (f" and {len(contigs) - 4} more" if len(contigs) > 4 else "")
    card = {
        "model": _said(after.get("model")),
        "checkpoint": _said(after.get("checkpoint")),
        "step": step,
        "store": _with_digest(after, "store"),
        "windows": _with_digest(after, "windows"),
        "split": f"{_said(after.get('split'))}: {header['windows']:,} on {named}",
        "context": f"{_said(after.get('context'))} tokens, in chunks of {_said(after.get('chunk'))}",
        "scored": f"{header['scored_bases']:,} of {header['window_bases']:,} bases",
        "excluded": excluded,
        "created": _said(after.get("created")),
        "command": _said(after.get("command")),
    }
    for name, text in card.items():
        yield from _wrap(f"{name:<12}{text}", " " * 12)


def _said(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(each)}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _with_digest(header: dict[str, Any], key: str) -> str:
    digest = header.get(f"{key}_digest")
    return _said(header.get(key)) + (f" ({digest})" if digest else "")


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


def _line(label: str, estimate: _Row) -> str:
    value, interval = _numbers(estimate)
    return f"{label:<24}{value:>10}  {interval:<22}{_remark(estimate)}"


def _baselines(report: dict[str, Any]) -> Iterator[str]:
    if not report["baselines"]:
        return
    yield "Baselines (A, C, G, T only)"
    yield f"{'  uniform':<24}{'2.000':>10}"
    for baseline in report["baselines"]:
        yield _line(f"  {baseline['name']}", baseline["bits"])
        yield _line(f"    after - {baseline['name']}", baseline["after_minus_baseline"])
    share = report["share_of_gap"]
    said = [f"{side} {_percent(share[side])}" for side in ("before", "after") if share[side]]
    what = f"Share of the gap from uniform to {share['baseline']} closed: "
    yield from _wrap(what + (", ".join(said) or "the gap is too small to take a share of it"), "  ")
    yield ""


def _percent(estimate: _Row) -> str:
    text = f"{100 * estimate['value']:.1f} %"
    if estimate["low"] is not None:
        text += f" [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"
    return text


def _cross_validation(report: dict[str, Any]) -> Iterator[str]:
    cv = report["cross_validation"]
    if not cv:
        return
    yield f"Order by cross-validation on training data (chosen: {cv['order']})"
    yield "  order " + "".join(f"{order:>6}" for order in range(len(cv["bits"])))
    yield "  bits  " + "".join(f"{value:>6.3f}" for value in cv["bits"])
    yield ""


def _contigs(report: dict[str, Any]) -> Iterator[str]:
    paired = report["main"]["full"]["difference"] is not None
    last = "after - before" if paired else "interval of after"
    yield "By contig (full vocabulary; * few blocks)"
    yield f"{'contig':<15}{'bases':>11}{'blocks':>7}{'before':>8}{'after':>8}  {last}"
    for row in report["contigs"]:
        loss = row["full"]
        name = row["contig"] if len(row["contig"]) <= 14 else f"{row['contig'][:5]}..{row['contig'][-7:]}"
        before, after = _numbers(loss["before"], most=4), _numbers(loss["after"], most=4)
        change = " ".join(_numbers(loss["difference"], most=4)) if paired else after[1]
        few = " *" if loss["after"]["method"] == "t" else ""
        yield f"{name:<15}{row['bases']:>11,}{row['blocks']:>7,}{before[0]:>8}{after[0]:>8}  {change}{few}"
    yield ""


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _estimates(report: dict[str, Any]) -> Iterator[tuple[str, str, str, str, _Row]]:
    rows = [("all", "all", report["main"]), *(("contig", row["contig"], row) for row in report["contigs"])]
    for section, name, row in rows:
        for loss in LOSSES:
            for quantity, estimate in row[loss].items():
                if estimate is not None:
                    yield section, name, loss, quantity, estimate
    for baseline in report["baselines"]:
        for quantity in ("bits", "after_minus_baseline"):
            yield "baseline", baseline["name"], "acgt", quantity, baseline[quantity]
    share = report["share_of_gap"] or {}
    for side in ("before", "after"):
        if share.get(side):
            yield "share_of_gap", share["baseline"], "acgt", side, share[side]


def _field(value: Any) -> str:
    if value is None:
        return "."
    return f"{value:.6f}" if isinstance(value, float) else str(value)
