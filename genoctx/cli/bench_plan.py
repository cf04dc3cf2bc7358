"""``genoctx bench plan``: predicted against measured peak memory, printed."""

from __future__ import annotations

from genoctx.cli.console import Console
from genoctx.errors import CheckFailed

CASES_A_ROUND = 8


def bench_plan(console: Console, rounds: int) -> None:
    """``rounds`` times eight cases; CheckFailed (exit 3) when one is off by more than five percent."""
    from genoctx.run.bench_plan import LIMIT, run_plan

    found = run_plan(CASES_A_ROUND * max(1, rounds), console.info)
    worst = max(found, key=lambda c: abs(c.error))
    if console.json:
        cases = [
            vars(c) | {"error": c.error, "closed_error": c.closed_error, "run_error": c.run_error}
            for c in found
        ]
        console.emit({"cases": cases, "worst": worst.error})
    else:
        rows = [
            (
                c.shape,
                c.length,
                c.chunk,
                c.batch,
                c.dtype,
                round(c.predicted / 2**20),
                round(c.actual / 2**20),
                f"{c.error:+.1%}",
                f"{c.closed_error:+.1%}",
                f"{c.run_error:+.1%}",
            )
            for c in found
        ]
        columns = (
            "shape",
            "window",
            "chunk",
            "batch",
            "dtype",
            "predicted MiB",
            "measured MiB",
            "error",
            "closed form",
            "a run",
        )
        console.table("", columns, rows, stdout=True)
    if abs(worst.error) > LIMIT:
        raise CheckFailed(
            f"{worst.shape}, {worst.length:,} tokens: predicted {worst.error:+.1%}",
            "the machine may have been short of memory; run it again on an idle one",
        )
