"""``genoctx train``: fine-tune on the training windows of a table, resuming by itself."""

from __future__ import annotations

import enum
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genoctx.cli.console import Console, get_console
from genoctx.cli.ranks import as_rank, refuse_nested
from genoctx.errors import UsageError

if TYPE_CHECKING:
    from genoctx.config import Config


class Launcher(enum.StrEnum):
    """Who starts the ranks of ``--nproc``."""

    local = "local"
    ray = "ray"


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to train, on what.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Run directory.")],
    preset: Annotated[
        str | None, typer.Option("--preset", help="Model and defaults beneath the file.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="Override one key, e.g. optim.lr=1e-4.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option("--init", metavar="DIR", help="Weights to start from: same as --set train.init=DIR."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Same as --set train.steps=N.")] = None,
    nproc: Annotated[
        int, typer.Option("--nproc", metavar="N", min=1, help="Start N ranks: here, or with --launcher.")
    ] = 1,
    launcher: Annotated[
        Launcher, typer.Option("--launcher", help="Who starts them: this machine, or a Ray cluster.")
    ] = Launcher.local,
    max_time: Annotated[
        str, typer.Option("--max-time", help="Save and exit 75 after this long: 90m, 2h.")
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: remove the run that is there.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print where each value came from, and stop.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check config, data and weights, print what would run, and stop."),
    ] = False,
) -> None:
    """Fine-tune on the training windows; held-out windows are scored before step 1 and at the end.

    If RUN exists and holds the same config, training goes on where it stopped. SIGINT and SIGTERM save
    first and exit 75. Under torchrun or srun each process joins as one rank ([parallel] says who does what).
    """
    from genoctx.config import load_config
    from genoctx.run.launch import place

    console, here = get_console(), place()
    flags = {"train.init": init, "train.steps": steps}
    overrides = [*(set_ or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    loaded = load_config(config, preset, overrides)
    if explain:
        return _explain(loaded, console)
    seconds = _seconds(max_time)
    refuse_nested(nproc, here)
    if (size := here.size if here else nproc) > 1:
        from genoctx.run.train import check_layout

        check_layout(loaded, size)
    if dry_run:
        return _rehearse(loaded, output, fresh, console)
    if here is None and launcher is Launcher.local and nproc > 1:
        from genoctx.run.local_ranks import start_local
        from genoctx.run.train import check_devices

        check_devices(loaded.stream.device, nproc)
        return start_local(sys.argv[1:], nproc, verbose=console.verbosity > 1)
    run: dict[str, Any] = {
        "source": config.read_text(),
        "out": output,
        "monitor": console,
        "fresh": fresh,
        "max_seconds": seconds,
    }
    if here is not None:
        from genoctx.run.train_ranks import train_rank

        outcome = as_rank(here, lambda: train_rank(here, loaded, **run), console)
        if here.rank > 0:
            return
    elif launcher is Launcher.ray:
        from genoctx.run.ray_train import start_ray

        outcome = start_ray(loaded, nproc=nproc, **run)
    else:
        from genoctx.run.train import train as run_training

        outcome = run_training(loaded, **run)
    console.info(f"next: genoctx report {output}")
    if console.json:
        console.emit(
            {
                "run": str(output),
                "step": outcome.step,
                "bases": outcome.bases,
                "checkpoint": str(outcome.checkpoint),
                "resumed": outcome.resumed,
            }
        )


def _explain(config: Config, console: Console) -> None:
    rows = config.explain()
    if console.json:
        console.emit({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        table = [(key, str(value), origin) for key, value, origin in rows]
        console.table("", ("key", "value", "from"), table, stdout=True)


def _rehearse(config: Config, output: Path, fresh: bool, console: Console) -> None:
    from genoctx.run.rehearsal import rehearse

    found = rehearse(config, output, fresh=fresh)
    if console.json:
        console.emit(found)
    else:
        console.table("", ("what", "value"), [(k, _text(v)) for k, v in found.items()], stdout=True)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _seconds(text: str) -> float:
    if not text:
        return 0.0
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise UsageError(f"--max-time {text!r} is not a duration", "write it like 90m, 2h or 3600")
    return seconds
