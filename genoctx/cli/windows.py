"""``genoctx windows``: a store in, a window table out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genoctx.cli.console import Console, get_console
from genoctx.cli.leak import Leak, audit_table, judge
from genoctx.errors import UsageError
from genoctx.sizes import parse_size

if TYPE_CHECKING:
    from genoctx.genome.windows import Dropped, WindowTable

STDOUT = "-"


def windows(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Written by genoctx ingest.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="TABLE.bed", help="File to write; - for stdout.")
    ],
    context: Annotated[
        str, typer.Option("--context", metavar="SIZE", help="Bases per window: 4k, 512k, 1M, 1000000bp.")
    ],
    holdout: Annotated[
        str,
        typer.Option(
            "--holdout",
            metavar="WHAT",
            help="Contigs (names or globs, by comma), a fraction (0.1), FILE.bed, or none.",
        ),
    ],
    stride: Annotated[
        str | None,
        typer.Option(
            "--stride",
            metavar="SIZE",
            help="From one training window to the next; default: the context. Held-out ones never overlap.",
        ),
    ] = None,
    guard: Annotated[
        str, typer.Option("--guard", metavar="SIZE", help="Bases left unused beside held-out ones.")
    ] = "0",
    max_n: Annotated[
        float, typer.Option("--max-n", metavar="SHARE", help="Drop a window with more N than this.")
    ] = 0.5,
    contigs: Annotated[
        list[str] | None,
        typer.Option("--contigs", metavar="GLOB", help="Use these contigs only; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Places the blocks of a held-out fraction.")] = 0,
    leak: Annotated[
        Leak, typer.Option("--leak", help="Look for held-out k-mers in training: a sample, all, or not.")
    ] = Leak.sampled,
    leak_k: Annotated[
        int, typer.Option("--leak-k", metavar="K", help="Bases per k-mer of the leakage audit.")
    ] = 31,
    leak_limit: Annotated[
        float, typer.Option("--leak-limit", metavar="SHARE", help="Exit 3 if more of them is in training.")
    ] = 0.25,
    force: Annotated[bool, typer.Option("--force", help="Replace a table that is there.")] = False,
) -> None:
    """Cut a store into training and held-out windows, as a BED table, and audit them for leakage.

    genoctx windows stores/g -o g.bed --context 1M --holdout chr2
    genoctx windows stores/g -o g.bed --context 512k --holdout 0.1 --guard 100k
    """
    from genoctx.genome.kmers import check_k
    from genoctx.genome.leakage import with_leakage
    from genoctx.genome.store import GenomeStore
    from genoctx.genome.windows import cut, format_table, write_table

    console = get_console()
    if output == STDOUT and console.json:
        raise UsageError("-o - and --json both write to standard output", "give -o a file")
    if output != STDOUT and Path(output).exists() and not force:
        raise UsageError(f"{output} exists already", "choose another place, or replace it with --force")
    if not 0 <= leak_limit <= 1:
        raise UsageError(f"--leak-limit {leak_limit} is not a share", "give a number from 0 to 1")
    check_k(leak_k)
    opened = GenomeStore.open(store)
    table, dropped = cut(
        opened,
        context=parse_size(context),
        stride=parse_size(stride) if stride is not None else None,
        holdout=holdout,
        guard=parse_size(guard),
        max_n=max_n,
        seed=seed,
        contigs=contigs or None,
    )
    leakage = audit_table(console, opened, table, leak, leak_k)
    if leakage is not None:
        table = with_leakage(table, leakage, leak_limit)
    if output == STDOUT:
        console.stdout.write(format_table(table))
    else:
        write_table(table, output)
    _print_summary(console, table, dropped)
    if console.json:
        console.emit(_summary(output, table, dropped))
    if leakage is not None:
        judge(console, table, leakage, leak_limit)


def _print_summary(console: Console, table: WindowTable, dropped: list[Dropped]) -> None:
    from genoctx.genome.windows import TOO_MANY_N

    found = _summary("", table, dropped)
    rows = [[s["split"], s["windows"], s["bases"], f"{100 * s['gc']:.1f}%"] for s in found["splits"]]
    console.table("", ["split", "windows", "bases", "GC"], rows)
    if found["dropped"]:
        lost = [[d["reason"], d["intervals"], d["bases"]] for d in found["dropped"]]
        console.table("\nin no window", ["reason", "intervals", "bases"], lost)
    rejected = int(table.header["lost_to_n"])
    if rejected:
        bases = sum(d["bases"] for d in found["dropped"] if d["reason"] == TOO_MANY_N)
        console.warn(
            f"{rejected:,} windows have more than {100 * float(table.header['max_n']):g} % N and were "
            f"left out: {bases:,} bases are in no window because of it"
        )
    for split, what in (("train", "train on"), ("holdout", "measure a held-out loss with")):
        if not table.split(split):
            console.warn(f"no {split} window: there is nothing to {what}")


def _summary(output: str, table: WindowTable, dropped: list[Dropped]) -> dict[str, Any]:
    splits = []
    for name in ("train", "holdout"):
        mine = table.split(name)
        if not mine:
            continue
        splits.append(
            {
                "split": name,
                "windows": len(mine),
                "bases": sum(window.end - window.start for window in mine),
                "gc": sum(window.gc for window in mine) / len(mine),
            }
        )
    lost = [
        {
            "reason": reason,
            "intervals": sum(part.reason == reason for part in dropped),
            "bases": sum(part.bases for part in dropped if part.reason == reason),
        }
        for reason in dict.fromkeys(part.reason for part in dropped)
    ]
    return {"windows": output, **table.header, "splits": splits, "dropped": lost}
