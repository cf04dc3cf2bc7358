"""A report as tab-separated rows, one number a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from genoctx.report.formats import LOSSES, Estimate

_COLUMNS = ("section", "row", "loss", "quantity", "value", "low", "high", "method", "blocks", "bases")
TSV_COLUMNS = (*_COLUMNS, "better", "worse", "p")
"""``p`` of a difference alone; corrected ones stand in ``report.json``."""

_Named = tuple[str, str, str, str, Estimate]
"""Section, row, loss, quantity and the number."""


def render_tsv(report: dict[str, Any]) -> str:
    """One number a row under a ``#`` header; ``.`` stands for what is not there."""
    lines = ["#" + "\t".join(TSV_COLUMNS)]
    for section, row, loss, quantity, estimate in _estimates(report):
        found = {"section": section, "row": row, "loss": loss, "quantity": quantity, **estimate}
        fields = [_field(found.get(name)) for name in TSV_COLUMNS[:-1]]
        p = found.get("p")
        lines.append("\t".join([*fields, "." if p is None else f"{p:.6g}"]))
    return "\n".join(lines) + "\n"


def _estimates(report: dict[str, Any]) -> Iterator[_Named]:
    yield from _losses("all", "all", report["main"])
    for row in report["contigs"]:
        yield from _losses("contig", row["contig"], row)
        yield from _beside("contig", row["contig"], row)
    for facet in report["strata"]:
        for row in facet["rows"]:
            yield from _losses("stratum", row["stratum"], row)
            yield from _beside("stratum", row["stratum"], row)
    for baseline in report["baselines"]:
        for quantity in ("bits", "after_minus_baseline"):
            yield "baseline", baseline["name"], "acgt", quantity, baseline[quantity]
    for share in report["share_of_gap"]:
        for side in ("before", "after"):
            if share[side]:
                yield "share_of_gap", share["baseline"], "acgt", side, share[side]
    for run in (report["seeds"] or {}).get("runs", ()):
        for quantity in ("before", "after", "difference"):
            if run[quantity]:
                yield "seed", run["run"], "acgt", quantity, run[quantity]
    yield from _contexts(report["contexts"])
    for name, estimate in (report["strands"] or {}).items():
        yield "strand", name, "acgt", "bits", estimate


def _losses(section: str, name: str, row: Mapping[str, Any]) -> Iterator[_Named]:
    for loss in LOSSES:
        for quantity, estimate in row[loss].items():
            if estimate is not None:
                yield section, name, loss, quantity, estimate


def _beside(section: str, name: str, row: Mapping[str, Any]) -> Iterator[_Named]:
    for baseline in row["baselines"]:
        yield section, name, "acgt", baseline["name"], baseline["bits"]
        yield section, name, "acgt", f"after_minus_{baseline['name']}", baseline["after_minus_baseline"]


def _contexts(found: Mapping[str, Any] | None) -> Iterator[_Named]:
    for side in ("before", "after", "adaptive"):
        for curve in (found or {}).get(side) or ():
            for point in curve["points"]:
                name = f"{curve['group']}/{point['context']}"
                yield "context", name, "acgt", side, point["bits"]
                for key, quantity in (("difference", "minus_shortest"), ("minus_adaptive", "minus_adaptive")):
                    if point[key]:
                        yield "context", name, "acgt", f"{side}_{quantity}", point[key]


def _field(value: Any) -> str:
    if value is None:
        return "."
    return f"{value:.6f}" if isinstance(value, float) else str(value)
