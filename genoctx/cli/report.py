"""``genoctx report``: held-out loss of one or two ledgers, with intervals and baselines. Needs no torch."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from genoctx.cli.console import get_console
from genoctx.errors import CheckFailed, UsageError
from genoctx.sizes import parse_size


class Format(enum.StrEnum):
    """What goes to stdout."""

    text = "text"
    json = "json"
    tsv = "tsv"


def report(
    ledgers: Annotated[
        list[Path],
        typer.Argument(
            metavar="LEDGER...",
            help="A ledger, or a run: its last evaluation beside its first. Further ones: other seeds of it.",
        ),
    ],
    before: Annotated[
        Path | None,
        typer.Option("--before", metavar="LEDGER", help="Compare with this ledger (or run's last)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write report.html, .json, .txt and .tsv there."),
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.text,
    confidence: Annotated[float, typer.Option("--confidence", help="Of all intervals.")] = 0.95,
    bootstrap: Annotated[int, typer.Option("--bootstrap", metavar="N", help="Draws per interval.")] = 2000,
    block: Annotated[
        str, typer.Option("--block", metavar="BASES", help="Length of a resampled block.")
    ] = "64k",
    test: Annotated[
        bool, typer.Option("--test", help="Test differences, corrected for their number (Holm).")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit 3 if nothing should be quoted: leakage, under 8 blocks, other windows."
        ),
    ] = False,
) -> None:
    """Tables from ledgers: bits per base with intervals, beside baselines, before training and other seeds.

    genoctx report runs/g
    genoctx report after.npz --before before.npz -o report/ --strict
    genoctx report runs/seed0 runs/seed1 runs/seed2 --test
    """
    from genoctx.cli.report_inputs import (
        all_ledgers,
        check_windows,
        load_baselines,
        read_beside,
        read_seed_runs,
    )
    from genoctx.report.ledger import Ledger
    from genoctx.report.render import render_text, render_tsv, save_report
    from genoctx.report.sources import find_ledgers
    from genoctx.report.tables import build_report

    console = get_console()
    size = parse_size(block)
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file", "give -o a directory")
    if before is not None and len(ledgers) > 1:
        raise UsageError(
            "--before is for one ledger", "give runs: each is compared with its own first evaluation"
        )
    evaluations = find_ledgers(ledgers[0])
    first = find_ledgers(before)[-1] if before is not None else evaluations[0]
    after = Ledger.load(evaluations[-1])
    earlier = Ledger.load(first) if first != evaluations[-1] else None
    beside = read_beside(after, evaluations[-1], earlier, first)
    runs = read_seed_runs(ledgers)
    everything = all_ledgers(after, earlier, beside, runs)
    check_windows(everything)
    baselines, notes = load_baselines(after, evaluations[-1], everything)
    content = build_report(
        earlier, after, baselines,
        confidence=confidence, bootstrap=bootstrap, block=size, test=test, runs=runs, beside=beside, notes=notes,
    )  # fmt: skip
    if output is not None:
        paths = save_report(content, output)
        console.info(f"wrote {', '.join(str(path) for path in paths)}")
    if console.json or format is Format.json:
        console.emit(content)
    else:
        render = render_tsv if format is Format.tsv else render_text
        console.print(render(content).rstrip("\n"))
    if strict and content["gate"]:
        raise CheckFailed(
            "; ".join(content["gate"]),
            "hold out more, or other sequence, or evaluate both on one window table",
        )
