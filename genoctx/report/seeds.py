"""The spread over training seeds: several runs of one config on the same held-out bases.

It is another source of variance than blocks of sequence, and is never mixed with it. All runs are scored on the
same bases, so which bases were held out has no part in their spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from genoctx.errors import InputError
from genoctx.report.blocks import blocks_of, difference_of_bases
from genoctx.report.ledger import Ledger, with_contigs
from genoctx.report.sides import Sides, comparison
from genoctx.report.stats import Sampling, standard_error
from genoctx.report.student import t_quantile

ENOUGH_RUNS = 3
"""Under this many runs their mean has no interval."""


@dataclass(frozen=True)
class SeedRun:
    """One run."""

    name: str
    seed: int | None
    after: Ledger
    before: Ledger | None


def over_seeds(runs: Sequence[SeedRun], size: int, sampling: Sampling) -> dict[str, Any] | None:
    """Every run over A, C, G and T, and mean, standard deviation and range over runs; None for a single run.

    ``within`` is the standard error over blocks within a run, their mean. Raises InputError where two runs are
    one model or scored different bases.
    """
    if len(runs) < 2:
        return None
    _require_comparable(runs)
    rows = [_row(run, size, sampling) for run in runs]
    quantities = ["after"] + (["difference"] if all(row["difference"] for row in rows) else [])
    return {
        "runs": [{key: value for key, value in row.items() if key != "errors"} for row in rows],
        "over_runs": [_over_runs(quantity, rows, sampling) for quantity in quantities],
    }


def _require_comparable(runs: Sequence[SeedRun]) -> None:
    first = runs[0]
    met: dict[Any, str] = {}
    for run in runs:
        checkpoint = run.after.header.get("checkpoint")
        if checkpoint in met:
            raise InputError(f"{met[checkpoint]} and {run.name} are the same model", "give every run once")
        met[checkpoint] = run.name
        for key in ("store_digest", "windows_digest", "split", "step"):
            here, there = run.after.header.get(key), first.after.header.get(key)
            if here != there:
                raise InputError(
                    f"{run.name} and {first.name} differ in {key}: {here} and {there}",
                    "seeds are compared at one step, on one window table",
                )
        if differs := difference_of_bases(run.after, first.after):
            raise InputError(
                f"{run.name} and {first.name} scored different bases: {differs}", "evaluate them again"
            )


def _row(run: SeedRun, size: int, sampling: Sampling) -> dict[str, Any]:
    before = run.before
    if before is not None:
        contigs = tuple(dict.fromkeys([*run.after.contigs, *before.contigs]))
        before = with_contigs(before, contigs)
    after = run.after if before is None else with_contigs(run.after, before.contigs)
    paired = before is not None and not difference_of_bases(before, after)
    here, there = blocks_of(after, size), blocks_of(before, size) if before is not None and paired else None
    found = comparison(Sides(here, there, paired, {}, sampling), "acgt")
    nats = {"after": here.nats_acgt}
    if there is not None:
        nats["difference"] = here.nats_acgt - there.nats_acgt
    errors = {quantity: standard_error(column, here) for quantity, column in nats.items()}
    return {"run": run.name, "seed": run.seed, **found, "errors": errors}


def _over_runs(quantity: str, rows: Sequence[dict[str, Any]], sampling: Sampling) -> dict[str, Any]:
    values = [row[quantity]["value"] for row in rows]
    mean, spread, n = statistics.fmean(values), statistics.stdev(values), len(values)
    reach = t_quantile(sampling.confidence, n - 1) * spread / math.sqrt(n)
    known = [row["errors"][quantity] for row in rows if row["errors"][quantity] is not None]
    return {
        "quantity": quantity,
        "runs": n,
        "mean": mean,
        "sd": spread,
        "least": min(values),
        "most": max(values),
        "low": mean - reach if n >= ENOUGH_RUNS else None,
        "high": mean + reach if n >= ENOUGH_RUNS else None,
        "within": statistics.fmean(known) if known else None,
    }
