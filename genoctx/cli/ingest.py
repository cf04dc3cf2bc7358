"""``genoctx ingest``: FASTA in, a genome store out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genoctx.cli.console import Console, get_console

if TYPE_CHECKING:
    from genoctx.genome.store import GenomeStore

ROWS = 40
"""Contigs listed one by one; a draft assembly has thousands."""


def ingest(
    fasta: Annotated[
        list[str],
        typer.Argument(metavar="FASTA...", help="Plain, gzip or bgzip, told by content; - for stdin."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="STORE", help="Folder of the new store.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Name of the genome; default: the folder's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a store that is there.")] = False,
) -> None:
    """Read reference genomes into a genome store. Lower case is kept as a mask, not as other bases.

    genoctx ingest genome.fa.gz -o stores/g
    zcat part*.fa.gz | genoctx ingest - -o stores/g --force
    """
    from genoctx.genome.store import ingest as build_store

    console = get_console()
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in fasta]
    total = sum(sizes) if all(sizes) else None
    with console.progress("ingest", total, "bytes") as bar:
        store = build_store(fasta, output, name=name, force=force, progress=bar.advance)
    for warning in store.warnings:
        console.warn(warning)
    _print_contigs(console, store)
    if console.json:
        console.emit(_summary(store, output))


def _print_contigs(console: Console, store: GenomeStore) -> None:
    columns = ["contig", "length", "GC", "N", "N runs", "IUPAC", "soft-masked"]
    rows = [
        [
            contig.name,
            contig.length,
            percent(contig.gc),
            percent(contig.n_count / contig.length),
            contig.n_runs,
            ",".join(f"{letter}:{count}" for letter, count in contig.iupac_counts.items()) or "-",
            percent(contig.softmask_fraction),
        ]
        for contig in store.contigs[:ROWS]
    ]
    console.table("", columns, rows)
    hidden = len(store.contigs) - ROWS
    if hidden > 0:
        console.info(f"... and {hidden:,} more: genoctx show store {store.path}")
    console.info(
        f"{store.path}: {len(store.contigs):,} contigs, {store.bases:,} bases, digest {store.digest}"
    )


def percent(share: float) -> str:
    """``12.3%``; a share that is not zero never prints as zero, nor one below 1 as 100 %."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{100 * share:.1f}%"


def _summary(store: GenomeStore, output: Path) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "store": str(output),
        "name": store.name,
        "digest": store.digest,
        "bases": store.bases,
        "contigs": [asdict(contig) for contig in store.contigs],
        "warnings": list(store.warnings),
    }
