"""``genoctx report``: held-out loss of one or two ledgers, with intervals and baselines. Needs no torch."""

from __future__ import annotations

import enum
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genoctx.cli.console import get_console
from genoctx.errors import CheckFailed, GenoctxError, InputError, UsageError
from genoctx.sizes import parse_size

if TYPE_CHECKING:
    from genoctx.report.ledger import Ledger

LEDGER_FILE = "ledger.npz"


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
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write report.json, report.txt and report.tsv there."
        ),
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.text,
    confidence: Annotated[float, typer.Option("--confidence", help="Of all intervals.")] = 0.95,
    bootstrap: Annotated[int, typer.Option("--bootstrap", metavar="N", help="Draws per interval.")] = 2000,
    block: Annotated[
        str, typer.Option("--block", metavar="BASES", help="Length of a resampled block.")
    ] = "64k",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 with under 8 blocks, or if the window tables differ.")
    ] = False,
) -> None:
    """Tables from one or two ledgers: bits per base with intervals, beside baselines and before training.

    genoctx report runs/g
    genoctx report after.npz --before before.npz -o report/ --strict
    """
    from genoctx.report.ledger import Ledger
    from genoctx.report.tables import build_report, render_text, render_tsv, save_report

    console = get_console()
    size = parse_size(block)
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file", "give -o a directory")
    evaluations = find_ledgers(ledger)
    first = find_ledgers(before)[-1] if before is not None else evaluations[0]
    after = Ledger.load(evaluations[-1])
    earlier = Ledger.load(first) if first != evaluations[-1] else None
    baselines, notes = load_baselines(after, evaluations[-1])
    content = build_report(
        earlier, after, baselines, confidence=confidence, bootstrap=bootstrap, block=size, notes=notes
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
        raise CheckFailed("; ".join(content["gate"]), "hold out more, or evaluate both on one window table")


def find_ledgers(path: Path) -> list[Path]:
    """The ledgers at ``path``, by step: a file, a directory with one, or a run's evaluations."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"{path} does not exist", "give a ledger.npz or a run directory")
    if (path / LEDGER_FILE).is_file():
        return [path / LEDGER_FILE]
    steps = [(re.fullmatch(r"step-(\d+)", p.parent.name), p) for p in path.glob(f"eval/step-*/{LEDGER_FILE}")]
    found = sorted((int(match[1]), p) for match, p in steps if match)
    if not found:
        raise InputError(f"{path} holds no {LEDGER_FILE} of an evaluation", "run `genoctx eval` first")
    return [p for _, p in found]


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
    from genoctx.genome.windows import read_table
    from genoctx.report.cache import genome_baselines

    header = after.header
    if not header.get("store") or not header.get("windows"):
        raise InputError("the ledger does not name its genome store and window table")
    store, table_path = GenomeStore.open(header["store"]), Path(header["windows"])
    if store.digest != header.get("store_digest"):
        raise InputError(f"{store.path} is not the store that the ledger was made from")
    table = read_table(table_path)
    if not _is_digest_of(str(header.get("windows_digest")), table_path):
        raise InputError(f"{table_path} is not the window table that the ledger was made from")
    return genome_baselines(after, store, table.split("train"), keep)


def _is_digest_of(digest: str, path: Path) -> bool:
    """``digest`` is the sha256 of the file at ``path`` in hex, or at least its first 16 digits."""
    hexadecimal = digest.removeprefix("sha256:")
    return len(hexadecimal) >= 16 and hashlib.sha256(path.read_bytes()).hexdigest().startswith(hexadecimal)
