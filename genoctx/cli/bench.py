"""``genoctx bench``: measured figures of this machine, with what they were measured on."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from genoctx.cli.console import get_console
from genoctx.errors import UsageError


class What(enum.StrEnum):
    """What is measured."""

    length = "length"


def bench(
    what: Annotated[What, typer.Argument(help="length: one exact training step at growing window lengths.")],
    store: Annotated[
        Path, typer.Argument(help="Genome store, written by `genoctx ingest`.", metavar="STORE")
    ],
    contig: Annotated[str, typer.Option(help="Contig the windows are cut from; default: the longest.")] = "",
    start: Annotated[str, typer.Option(help="First base of the windows, 0-based.")] = "0",
    contexts: Annotated[str, typer.Option(help="Window lengths, separated by commas.")] = "16k,64k,256k,1M",
    preset: Annotated[str, typer.Option(help="Model preset, freshly drawn.")] = "nano",
    chunk: Annotated[str, typer.Option(help="Tokens per chunk.")] = "2k",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
) -> None:
    """Seconds, bases/s and peak memory of one exact training step (both sweeps and the optimizer).

    Each length runs in a process of its own. Example:
    genoctx bench length stores/chrX --contexts 16k,64k --start 1M
    """
    from genoctx.genome.store import GenomeStore
    from genoctx.run.bench import refuse_unfit, run_length
    from genoctx.run.provenance import machine, versions
    from genoctx.sizes import format_size, parse_size

    console = get_console()
    opened, first, tokens = GenomeStore.open(store), parse_size(start), parse_size(chunk)
    if tokens < 1:
        raise UsageError(f"--chunk {chunk} holds no token", "write it like 2k")
    there = opened.contig(contig) if contig else max(opened.contigs, key=lambda c: c.length)
    lengths = [parse_size(text) for text in contexts.split(",")]
    for context in lengths:  # all of them before the first is measured
        refuse_unfit(there, first, context)
    results = []
    for context in lengths:
        console.info(f"one training step of {preset} on {format_size(context)} bases of {there.name}")
        results.append(run_length(store, there.name, first, context, preset, tokens, threads))
    if console.json:
        console.emit(
            {
                "machine": machine(),
                "versions": versions(),
                "preset": preset,
                "lengths": [vars(r) for r in results],
            }
        )
        return
    gib = 1 << 30
    rows = [
        (
            format_size(r.context),
            f"{r.forward_s:.1f}",
            f"{r.backward_s:.1f}",
            f"{r.tokens_per_s:.0f}",
            f"{r.peak_bytes / gib:.2f}",
            f"{r.cache_bytes / gib:.3f}",
            f"{r.graph_bytes / gib:.3f}",
        )
        for r in results
    ]
    columns = ("window", "forward s", "backward s", "bases/s", "peak GiB", "caches GiB", "graph GiB")
    console.table(f"{preset}, chunks of {chunk}, float32", columns, rows, stdout=True)
