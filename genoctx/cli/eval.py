"""``genoctx eval``: score held-out windows with a checkpoint, into a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genoctx.cli.console import get_console
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
    """Held-out loss, chunk by chunk in one pass. Writes a ledger, not an average: see `genoctx report`."""
    from genoctx.genome.window_table import read_table
    from genoctx.run.rundir import checkpoint_at, checkpoint_step
    from genoctx.sizes import parse_size

    console = get_console()
    tokens = parse_size(chunk)
    if tokens < 1:
        raise UsageError(f"--chunk {chunk} holds no token", "write it like 4k")
    if dtype not in ("float32", "bfloat16", "float64"):
        raise UsageError(f"--dtype {dtype!r} is unknown", "use float32, bfloat16 or float64")
    _refuse_output(output, force)
    directory = checkpoint_at(model)
    step = checkpoint_step(directory)
    place = store or Path(str(read_table(windows).header["store"]))

    import torch

    from genoctx.genome.tokenizer import verify_tokenizer
    from genoctx.model.weights import load_model
    from genoctx.run.data import open_data, windows_of
    from genoctx.run.device import choose_device
    from genoctx.run.evaluate import Extras
    from genoctx.run.evaluate import evaluate as score
    from genoctx.run.tracks import parse_track
    from genoctx.run.train import prepare_machine

    extras = Extras(
        rc=rc,
        contexts=tuple(parse_size(size) for size in contexts.split(",") if contexts),
        track=parse_track(tracks) if tracks else None,
    )
    if extras.track and extras.track[0].exists() and not force:
        raise UsageError(f"{extras.track[0]} exists", "give another file, or --force to replace it")
    prepare_machine(threads=0)
    loaded = load_model(directory, dtype=getattr(torch, dtype), device=choose_device("auto"))
    verify_tokenizer(directory, loaded.config.vocab_size)
    data = open_data(place, windows, loaded.config)
    chosen = windows_of(data, split, limit)
    made = score(loaded, data, chosen, chunk=tokens, step=step, out=output, monitor=console, extras=extras)
    console.info(f"next: genoctx report {output}")
    if console.json:
        console.emit({"ledger": str(output / "ledger.npz"), **made.summary()})
    bits = made.ledger.totals().bits_acgt
    if fail_above is not None and bits > fail_above:
        raise CheckFailed(f"{bits:.4f} bits/base exceed --fail-above {fail_above}", "see genoctx report")


def _refuse_output(output: Path, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file", "give -o a directory")
    if (output / "ledger.npz").exists() and not force:
        raise UsageError(f"{output / 'ledger.npz'} exists", "give another -o, or --force to replace it")
