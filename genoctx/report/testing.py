"""Which differences are more than chance, when so many are looked at: Holm's correction by family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_Named = tuple[str, dict[str, Any] | None]


def tests(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The families of a report's differences over A, C, G and T: the headline, strata, contexts.

    Each row has its chance ``p`` alone and ``p_holm`` within the family; differences over too few blocks are
    not tested and do not count.
    """
    families = {
        "after - before": _headline(report),
        "after - before, by stratum": _strata(report),
        "context, to the shortest": _contexts(report),
    }
    found = []
    for family, differences in families.items():
        rows = [
            {"name": name, "bits": each["value"], **{key: each[key] for key in ("blocks", "bases", "p")}}
            for name, each in differences
            if each and each["p"] is not None
        ]
        corrected = holm([row["p"] for row in rows])
        if rows:
            rows = [{**row, "p_holm": p} for row, p in zip(rows, corrected, strict=True)]
            found.append({"family": family, "rows": rows})
    return found


def holm(chances: Sequence[float]) -> list[float]:
    """Chances corrected for their number, in their own order (Holm 1979): no rule on how they depend on each
    other is needed."""
    corrected, least = [0.0] * len(chances), 0.0
    for rank, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[i]))
        corrected[i] = least
    return corrected


def _headline(report: dict[str, Any]) -> Iterator[_Named]:
    yield "all", report["main"]["acgt"]["difference"]


def _strata(report: dict[str, Any]) -> Iterator[_Named]:
    for facet in report["strata"]:
        for row in facet["rows"]:
            yield row["stratum"], row["acgt"]["difference"]


def _contexts(report: dict[str, Any]) -> Iterator[_Named]:
    for curve in (report["contexts"] or {}).get("after", ()):
        for point in curve["points"]:
            yield f"{curve['group']}/{point['context']}", point["difference"]
