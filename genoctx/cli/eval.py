"""``genoctx eval``: score held-out windows with a checkpoint, into a ledger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from genoctx.cli.console import get_console
from genoctx.cli.ranks import as_rank
from genoctx.errors import CheckFailed, UsageError


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(metavar="CKPT|RUN", help="Checkpoint directory (hub layout), or a run: its newest."),
    ],
    windows: Annotated[Path, typer.Option("--windows", metavar="TABLE.bed", help="Window table.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where ledger.npz goes.")],
    split: Annotated[str, typer.Option("--split", help="Split to score.")] = "holdout",
    store: Annotated[
        Path | None, typer.Option("--store", help="Genome store; default: the one the table names.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Score at most N windows; 0 scores all.")] = 0,
    contexts: Annotated[
        str,
        typer.Option(
            "--contexts",
            metavar="LIST",
            help="Score the second half of every window at these contexts too, such as 4k,64k.",
        ),
    ] = "",
    rc: Annotated[bool, typer.Option("--rc", help="Score the reverse complement too.")] = False,
    tracks: Annotated[
        str,
        typer.Option(
            "--tracks",
            metavar="FILE[:BIN]",
            help="Also write bits per base as bedGraph (.gz), means of BIN bases (64).",
        ),
    ] = "",
    chunk: Annotated[str, typer.Option("--chunk", help="Tokens per chunk.")] = "4k",
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float64.")] = "float32",
    fail_above: Annotated[
        float | None,
        typer.Option("--fail-above", metavar="BITS", help="Exit 3 if bits/base over ACGT exceed this."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Held-out loss, chunk by chunk in one pass. Writes a ledger, not an average: see `genoctx report`.

    Under torchrun or srun each process joins as one rank, and they score windows side by side.
    """
    from genoctx.run.launch import place
    from genoctx.sizes import parse_size

    console, here = get_console(), place()
    tokens = parse_size(chunk)
    if fail_above is not None and not math.isfinite(fail_above):
        raise UsageError(f"--fail-above {fail_above} is no limit", "give bits per base, for instance 1.9")
    if tokens < 1:
        raise UsageError(f"--chunk {chunk} holds no token", "write it like 4k")
    if dtype not in ("float32", "bfloat16", "float64"):
        raise UsageError(f"--dtype {dtype!r} is unknown", "use float32, bfloat16 or float64")

    import torch

    from genoctx.run.eval_checkpoint import Request, evaluate_alone, evaluate_rank
    from genoctx.run.evaluate import Extras
    from genoctx.run.tracks import parse_track

    request = Request(
        model=model,
        windows=windows,
        store=store,
        split=split,
        limit=limit,
        chunk=tokens,
        dtype=getattr(torch, dtype),
        extras=Extras(
            rc=rc,
            contexts=tuple(parse_size(size) for size in contexts.split(",") if contexts),
            track=parse_track(tracks) if tracks else None,
        ),
        out=output,
        force=force,
    )
    if here is None:
        made = evaluate_alone(request, console)
    else:
        made = as_rank(here, lambda: evaluate_rank(here, request, console), console)
        if here.rank > 0:
            return
    console.info(f"next: genoctx report {output}")
    if console.json:
        console.emit({"ledger": str(output / "ledger.npz"), **made.summary()})
    bits = made.ledger.totals().bits_acgt
    if fail_above is not None and not bits <= fail_above:  # a loss that is no number fails, too
        raise CheckFailed(f"{bits:.4f} bits/base exceed --fail-above {fail_above}", "see genoctx report")
