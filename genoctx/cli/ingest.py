"""``genoctx ingest``: sequence files in, a genome store out."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer

from genoctx.cli.console import get_console


class Gaps(enum.StrEnum):
    """What ``-``, ``.`` and ``~`` mean."""

    error = "error"
    drop = "drop"
    n = "n"


def ingest(
    fasta: Annotated[
        list[str],
        typer.Argument(metavar="FASTA...", help="FASTA or GenBank, plain, gzip or bgzip; - for stdin."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="STORE", help="Folder of the new store.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Name of the genome; default: the folder's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a store that is there.")] = False,
    annotation: Annotated[
        list[str] | None,
        typer.Option(
            "--annotation", metavar="FILE", help="GFF3, GTF or BED (plain BED: FILE=CLASS); may be repeated."
        ),
    ] = None,
    contigs: Annotated[
        list[str] | None,
        typer.Option("--contigs", metavar="GLOB", help="Read these records only; may be repeated."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="GLOB", help="Leave these records out; may be repeated."),
    ] = None,
    regions: Annotated[
        list[str] | None,
        typer.Option("--regions", metavar="WHERE", help="Read only chr5:1-80, or FILE.bed; may be repeated."),
    ] = None,
    gaps: Annotated[Gaps, typer.Option("--gaps", help="What -, . and ~ mean.")] = Gaps.error,
    rename_duplicates: Annotated[
        bool, typer.Option("--rename-duplicates", help="A name that is taken becomes a.2, a.3, ...")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Files read at a time.")] = 1,
) -> None:
    """Read reference genomes into a genome store. Lower case is kept as a mask, not as other bases.

    genoctx ingest genome.fa.gz -o stores/g
    genoctx ingest chr*.fa.gz -o stores/g --annotation genes.gff3.gz --jobs 4
    zcat part*.fa.gz | genoctx ingest - -o stores/g --force
    """
    from genoctx.cli.show_store import HEAD, describe, summarise
    from genoctx.genome.select import ReadOptions
    from genoctx.genome.store import ingest as build_store

    console = get_console()
    options = ReadOptions(
        gaps=gaps.value,
        rename=rename_duplicates,
        contigs=tuple(contigs or ()),
        skip=tuple(skip or ()),
        regions=tuple(regions or ()),
    )
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in fasta]
    total = sum(sizes) if all(sizes) else None
    with console.progress("ingest", total, "bytes") as bar:
        store = build_store(
            fasta,
            output,
            name=name,
            force=force,
            progress=bar.advance,
            options=options,
            annotations=annotation or (),
            jobs=jobs,
        )
    for warning in store.warnings:
        console.warn(warning)
    if console.json:
        console.emit(describe(store))
    else:
        summarise(console, store, HEAD, stdout=False)
        for fit in store.manifest.fits:
            console.info(f"fit: {fit}")
