"""A report as tab-separated rows, one number a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from genoctx.report.formats import LOSSES, Estimate

_COLUMNS = ("section", "row", "loss", "quantity", "value", "low", "high", "method", "blocks", "bases")
TSV_COLUMNS = (*_COLUMNS, "better", "worse")

_Named = tuple[str, str, str, str, Estimate]
"""Section, row, loss, quantity and the number."""


def render_tsv(report: dict[str, Any]) -> str:
    """One number a row under a ``#`` header; ``.`` stands for what is not there."""
    lines = ["#" + "\t".join(TSV_COLUMNS)]
    for section, row, loss, quantity, estimate in _estimates(report):
        found = {"section": section, "row": row, "loss": loss, "quantity": quantity, **estimate}
        lines.append("\t".join(_field(found.get(name)) for name in TSV_COLUMNS))
    return "\n".join(lines) + "\n"


def _estimates(report: dict[str, Any]) -> Iterator[_Named]:
    yield from _losses("all", "all", report["main"])
    for row in report["contigs"]:
        yield from _losses("contig", row["contig"], row)
    for facet in report["strata"]:
        for row in facet["rows"]:
            yield from _losses("stratum", row["stratum"], row)
    for baseline in report["baselines"]:
        for quantity in ("bits", "after_minus_baseline"):
            yield "baseline", baseline["name"], "acgt", quantity, baseline[quantity]
    for share in report["share_of_gap"]:
        for side in ("before", "after"):
            if share[side]:
                yield "share_of_gap", share["baseline"], "acgt", side, share[side]
    yield from _contexts(report["contexts"])
    for name, estimate in (report["strands"] or {}).items():
        yield "strand", name, "acgt", "bits", estimate


def _losses(section: str, name: str, row: Mapping[str, Any]) -> Iterator[_Named]:
    for loss in LOSSES:
        for quantity, estimate in row[loss].items():
            if estimate is not None:
                yield section, name, loss, quantity, estimate


def _contexts(found: Mapping[str, Any] | None) -> Iterator[_Named]:
    for side in ("before", "after"):
        for curve in (found or {}).get(side) or ():
            for point in curve["points"]:
                name = f"{curve['group']}/{point['context']}"
                yield "context", name, "acgt", side, point["bits"]
                if point["difference"]:
                    yield "context", name, "acgt", f"{side}_minus_shortest", point["difference"]


def _field(value: Any) -> str:
    if value is None:
        return "."
    return f"{value:.6f}" if isinstance(value, float) else str(value)
