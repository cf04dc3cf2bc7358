"""``genoctx plan``: what fits where, what binds, how long, before anything is allocated."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genoctx.cli.console import Console, get_console
from genoctx.errors import UsageError, WouldNotFit

if TYPE_CHECKING:
    from genoctx.config import Config
    from genoctx.run.devices import Fleet
    from genoctx.run.plan import Limits
    from genoctx.run.plan_answer import Answer

GIB = 1 << 30
_TABLE = "16k,64k,256k,1M"
"""Window lengths of a preset that stands alone."""


class Fit(enum.StrEnum):
    """Who chooses chunk size and homes."""

    given = "given"
    auto = "auto"


def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="What to train; data may be missing.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Model and defaults beneath the file.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="Override one key, e.g. stream.chunk=8k.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="b200:64, h200:1, cpu:2, ...; default: this machine's GPU, or its processor.")
    ] = "",
    host_ram: Annotated[str, typer.Option(help="Memory of one node: 2TB, 512G.", show_default=False)] = "",
    disk: Annotated[str, typer.Option(help="Free disk of one node.", show_default=False)] = "",
    context: Annotated[
        str, typer.Option(help=f"Window lengths, separated by commas; default: the config's, else {_TABLE}.")
    ] = "",
    fit: Annotated[
        Fit, typer.Option(help="auto: choose chunk size and homes, and print the settings.")
    ] = Fit.given,
    lora: Annotated[
        int, typer.Option(min=0, help="Train adapters of this rank instead; 0: as the config.")
    ] = 0,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="On a processor, closed forms alone: run no short window.")
    ] = False,
) -> None:
    """Bytes of every tier and category, seconds of a window, and what to change if it would not fit (exit 4).

    genoctx plan run.toml
    genoctx plan run.toml --fit auto
    genoctx plan --preset gpu8 --device b200:8
    genoctx plan --preset glm-5.3-flash --device b200:64 --context 16k,128k,1M
    """
    from genoctx.config import load_plan_config
    from genoctx.run.plan import limits_of
    from genoctx.run.plan_local import local_fleet
    from genoctx.sizes import parse_size

    console = get_console()
    if config is None and preset is None:
        raise UsageError("plan what?", "genoctx plan CONFIG.toml, or genoctx plan --preset nano")
    loaded = load_plan_config(config, preset, set_ or [])
    fleet = local_fleet(device, loaded.stream.device)
    given = _bytes(host_ram, "--host-ram"), _bytes(disk, "--disk")
    limits = limits_of(fleet, *given, _folder(loaded), here=not device)
    asked = context or ("" if config else _TABLE)
    lengths = [parse_size(text) for text in asked.split(",")] if asked else [_length(loaded)]
    if min(lengths) < 2:
        raise UsageError(f"--context {context}: a window has at least 2 tokens", "for instance --context 64k")
    answers = [
        _answer(console, loaded, fleet, length, limits, fit, lora, not no_measure) for length in lengths
    ]
    if console.json:
        found = [answer.to_json() for answer in answers]
        console.emit(found[0] if len(found) == 1 else {"plans": found})
    elif len(answers) == 1:
        _show(console, answers[0])
    else:
        _show_all(console, loaded, answers)
    refused = [a for a in answers if not a.plan.fits]
    if refused and (asked == context or len(refused) == len(answers)):
        first = refused[0]
        raise WouldNotFit(
            f"{first.plan.length:,} tokens on {fleet.name} would not fit: {first.problem}",
            f"cheapest change: {first.change}",
        )


def _answer(
    console: Console,
    config: Config,
    fleet: Fleet,
    length: int,
    limits: Limits,
    fit: Fit,
    lora: int,
    measure: bool,
) -> Answer:
    from genoctx.engine.allowed import refuse_homes
    from genoctx.run.plan import measure_chunk, settings_of
    from genoctx.run.plan_answer import answer
    from genoctx.sizes import format_size

    given = settings_of(config, fleet, length, lora)
    refuse_homes(given.homes, gpu=fleet.device is not None, ranks=fleet.count)
    measured = None
    if measure and fleet.device is None:
        console.info(f"measuring one chunk of {format_size(given.chunk)} (--no-measure: closed form alone)")
        measured = measure_chunk(config, fleet, length, given.chunk)
    return answer(config, fleet, length, limits, given, measured, choose=fit == Fit.auto)


def _bytes(text: str, option: str) -> int:
    """``2TB``, ``512G`` as bytes; 0 where nothing is given."""
    from genoctx.run.devices import parse_bytes

    try:
        found = parse_bytes(text) if text else 0
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", error.hint) from None
    if text and not found:
        raise UsageError(f"{option} {text}: there has to be some", "for example 512G, or leave it out")
    return found


def _folder(config: Config) -> Path:
    """Where mapped homes and checkpoints go: the folder of the config, or this one."""
    homes = getattr(config, "homes", None)
    folder = getattr(homes, "folder", None)
    return Path(folder) if folder and Path(folder).is_dir() else Path()


def _length(config: Config) -> int:
    """The window of a config: train.context, or the longest of its table."""
    if config.train.context:
        return -(-config.train.context // config.model.token_bases)
    if config.data.windows.is_file():
        from genoctx.genome.windows import read_table

        windows = read_table(config.data.windows).windows
        if windows:
            return -(-max(w.end - w.start for w in windows) // config.model.token_bases)
    raise UsageError(
        "how long are the windows?", "--context 64k,1M, or train.context, or data.windows in the config"
    )


def _range(fast: float, slow: float) -> str:
    """``12-48``: two significant digits."""
    return f"{_two(fast)}-{_two(slow)}"


def _two(value: float) -> str:
    """Two significant digits, written out."""
    return f"{float(f'{value:.2g}'):,g}" if value >= 1 else f"{value:.2g}"


def _show(console: Console, found: Answer) -> None:
    from genoctx.run.plan_layout import TIERS

    plan = found.plan
    rows: list[tuple[str, str, float]] = []
    for tier in TIERS:
        rows += [(tier, name, round(size / GIB, 3)) for name, size in plan.bytes[tier].items()]
    console.table("", ("tier", "what", "GiB"), rows, stdout=True)
    for tier in TIERS:
        if plan.bytes[tier]:
            used, there = sum(plan.bytes[tier].values()), plan.limits.of(tier)
            console.info(
                f"{tier}: {used / GIB:,.1f} of {there / GIB:,.1f} GiB ({plan.limits.sources.get(tier, '')})"
            )
    for line in found.lines():
        console.info(line)


def _show_all(console: Console, config: Config, answers: Sequence[Answer]) -> None:
    from genoctx.run.plan_answer import headline
    from genoctx.run.plan_layout import TIERS
    from genoctx.sizes import format_size

    for line in headline(config, answers):
        console.info(line)
    rows = []
    for found in answers:
        plan = found.plan
        sizes = [f"{sum(plan.bytes[tier].values()) / GIB:,.1f}" for tier in TIERS]
        rows.append(
            (
                format_size(plan.length),
                format_size(plan.settings.chunk),
                plan.settings.cp,
                *sizes,
                f"{found.flops / 1e9:.1f}",
                _range(plan.cost.seconds.fast, plan.cost.seconds.slow),
                _range(*plan.tokens_per_s),
                plan.binding,
                "yes" if plan.fits else f"no: {found.change}",
            )
        )
    columns = (
        "window",
        "chunk",
        "cp",
        "device GiB",
        "host GiB",
        "disk GiB",
        "GFLOP/token",
        "s/window",
        "tokens/s",
        "binds",
        "fits",
    )
    console.table("predictions, no measurement of this model", columns, rows, stdout=True)
    for line in answers[-1].footnotes():
        console.info(line)
