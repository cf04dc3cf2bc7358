"""``genoctx report``: held-out loss of one or two ledgers, with intervals and baselines. Needs no torch."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genoctx.cli.console import get_console
from genoctx.errors import CheckFailed, GenoctxError, InputError, UsageError
from genoctx.sizes import parse_size

if TYPE_CHECKING:
    from genoctx.report.ledger import Ledger
    from genoctx.report.sources import Beside


class Format(enum.StrEnum):
    """What goes to stdout."""

    text = "text"
    json = "json"
    tsv = "tsv"


def report(
    ledger: Annotated[
        Path,
        typer.Argument(metavar="LEDGER", help="A ledger, or a run: its last evaluation beside its first."),
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
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit 3 if nothing should be quoted: leakage, under 8 blocks, other windows."
        ),
    ] = False,
) -> None:
    """Tables from one or two ledgers: bits per base with intervals, beside baselines and before training.

    genoctx report runs/g
    genoctx report after.npz --before before.npz -o report/ --strict
    """
    from genoctx.report.ledger import Ledger
    from genoctx.report.render import render_text, render_tsv, save_report
    from genoctx.report.sources import find_ledgers
    from genoctx.report.tables import build_report

    console = get_console()
    size = parse_size(block)
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file", "give -o a directory")
    evaluations = find_ledgers(ledger)
    first = find_ledgers(before)[-1] if before is not None else evaluations[0]
    after = Ledger.load(evaluations[-1])
    earlier = Ledger.load(first) if first != evaluations[-1] else None
    beside = read_beside(after, evaluations[-1], earlier, first)
    baselines, notes = load_baselines(after, evaluations[-1])
    content = build_report(
        earlier, after, baselines,
        confidence=confidence, bootstrap=bootstrap, block=size, beside=beside, notes=notes,
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


def load_baselines(after: Ledger, path: Path) -> tuple[dict[str, Ledger], list[str]]:
    """Baselines for ``after`` (kept beside its file), or none and a note that says why."""
    from genoctx.report import cache

    console = get_console()
    kept_in = path.with_name(cache.FILE)
    known = cache.load_baselines(kept_in, after)
    if known is not None:
        return known, []
    console.info("baselines: counting words of the training windows", level=1)
    try:
        return _compute_baselines(after, kept_in), []
    except (GenoctxError, OSError) as error:
        reason = error.message if isinstance(error, GenoctxError) else str(error)
        console.warn(f"no baselines: {reason}")
        return {}, [f"No baselines: {reason}."]


def _compute_baselines(after: Ledger, keep: Path) -> dict[str, Ledger]:
    from genoctx.genome.store import GenomeStore
    from genoctx.report.cache import genome_baselines
    from genoctx.report.sources import table_of

    if not after.header.get("store"):
        raise InputError("the ledger does not name its genome store")
    store, table = GenomeStore.open(after.header["store"]), table_of(after)
    if store.digest != after.header.get("store_digest"):
        raise InputError(f"{store.path} is not the store that the ledger was made from")
    return genome_baselines(after, store, table.split("train"), keep)


def read_beside(after: Ledger, path: Path, before: Ledger | None, before_path: Path) -> Beside:
    """What lies beside the ledger at ``path`` and in its run."""
    from genoctx.report import sources
    from genoctx.report.ledger import Ledger
    from genoctx.run.metrics import read_metrics

    table, reason = sources.read_table_header(after)
    run = sources.run_of(path)
    return sources.Beside(
        reverse=sources.read_reverse(path, after),
        contexts=sources.read_contexts(path, after),
        contexts_before=sources.read_contexts(before_path, before) if before is not None else None,
        table=table,
        leakage=sources.leakage_of(table, reason),
        machine=after.header.get("session") or (sources.read_machine(run) if run else None),
        metrics=read_metrics(run / "metrics.jsonl") if run else (),
        held_out=[Ledger.load(each) for each in sources.find_ledgers(run)] if run else (),
    )
