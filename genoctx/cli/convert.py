"""``genoctx convert``: weights from and to the hub's form; merge an adapter; verify every bit."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genoctx.cli.console import Console, get_console
from genoctx.errors import UsageError

if TYPE_CHECKING:
    from genoctx.run.convert import Conversion


class Form(enum.StrEnum):
    """``hf``: everything the base holds, as it holds it. ``genoctx``: the text model, ready to train."""

    hf = "hf"
    genoctx = "genoctx"


class Dtype(enum.StrEnum):
    """Of the weights; what the hub keeps in float32 stays float32."""

    keep = "keep"
    bfloat16 = "bfloat16"
    float32 = "float32"


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="Checkpoint directory (hub layout), or a run: its newest.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Directory to write.")],
    form: Annotated[
        Form, typer.Option("--to", help="hf: a whole hub checkpoint; genoctx: the text model, no float8.")
    ],
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            metavar="DIR",
            help="Hub checkpoint that training began with: hf keeps its other tensors, dtypes and config. "
            "Default: what the run remembers, else SRC.",
        ),
    ] = None,
    merge_lora: Annotated[
        Path | None, typer.Option("--merge-lora", metavar="ADAPTER", help="Add this adapter to the weights.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of the weights; keep: as stored.")] = Dtype.keep,
    layers: Annotated[
        str, typer.Option("--layers", metavar="0-3,7", help="Take these layers only (--to genoctx).")
    ] = "",
    max_shard_size: Annotated[
        str, typer.Option("--max-shard-size", metavar="SIZE", help="Largest file.")
    ] = "5gb",
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read everything back and compare all bits; exit 3 if any differs."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the checkpoint at DST.")] = False,
) -> None:
    """Convert a checkpoint, tensor by tensor; what is not changed keeps its bytes.

    genoctx convert GLM-5.3-Flash-FP8 glm-bf16 --to genoctx
    genoctx convert runs/g my-model --to hf --verify
    genoctx convert runs/lora merged --to hf --dtype bfloat16
    genoctx convert GLM-5.3-Flash-FP8 first-four --to genoctx --layers 0-3
    """
    from genoctx.sizes import parse_size

    console = get_console()
    shard_bytes, chosen = parse_size(max_shard_size), parse_layers(layers)
    if shard_bytes < 1:
        raise UsageError(f"--max-shard-size {max_shard_size} holds nothing", "write it like 5gb")

    import torch

    from genoctx.run.convert import Options
    from genoctx.run.convert import convert as run
    from genoctx.run.convert_sources import with_adapter
    from genoctx.run.rundir import checkpoint_at

    options = Options(
        form="hf" if form == Form.hf else "genoctx",
        base=checkpoint_at(base) if base is not None else None,
        dtype=None if dtype == Dtype.keep else getattr(torch, dtype),
        layers=chosen,
        shard_bytes=shard_bytes,
        verify=verify,
        force=force,
    )
    merging: dict[str, Any] = {}
    weights, adapter = with_adapter(checkpoint_at(source), merge_lora, console)
    if adapter is not None:
        merging = {
            "delta": adapter.delta,
            "instead": adapter.replacement,
            "merged": frozenset(adapter.names()),
        }
    done = run(weights, target, options, monitor=console, **merging)
    _tell(console, target, done)


def parse_layers(text: str) -> tuple[int, ...] | None:
    """``0-3,7`` as (0, 1, 2, 3, 7); empty: None."""
    found: list[int] = []
    for part in text.split(",") if text.strip() else []:
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(
                f"--layers {text!r}: {part!r} is no layer or range", "write it like 0-3 or 0-3,7"
            )
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found) or None


def _tell(console: Console, target: Path, done: Conversion) -> None:
    files = f"{len(done.files)} file{'s' if len(done.files) > 1 else ''}"
    console.info(f"{target}: {done.tensors:,} tensors, {done.size:,} bytes, {files}")
    if done.base != done.source:
        console.info(f"all else as in {done.base}")
    console.table("", ["tensors", "what became of them"], [[n, how] for how, n in done.became.items()])
    if rounded := done.became.get("changed and rounded to float8 again"):
        console.warn(
            f"{rounded:,} tensors were rounded to float8 again, by up to 6 % a number; --dtype bfloat16 keeps "
            "all that training has changed"
        )
    if done.verified:
        console.info("verified: read back, all bits as they should be")
    if console.json:
        console.emit(
            {
                "checkpoint": str(target),
                "tensors": done.tensors,
                "bytes": done.size,
                "files": list(done.files),
                "became": done.became,
                "base": str(done.base),
                "verified": done.verified,
            }
        )
