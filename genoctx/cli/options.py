"""The global options. Each is accepted before the verb and after it, and configures the console."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

import genoctx
from genoctx.cli.console import get_console
from genoctx.cli.verbs import GLOBAL_PANEL


class Color(enum.StrEnum):
    """When stderr is coloured; ``auto``: on a terminal, unless NO_COLOR is set."""

    auto = "auto"
    always = "always"
    never = "never"


def _version(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        console = get_console()
        if console.json:
            console.emit({"version": genoctx.__version__})
        else:
            console.print(f"genoctx {genoctx.__version__}")
        raise typer.Exit


def _quiet(value: bool) -> None:
    if value:
        get_console().verbosity = -1


def _verbose(value: int) -> None:
    if value:
        get_console().verbosity = min(value, 2)


def _color(value: Color | None) -> None:
    if value is not None:
        get_console().color = str(value)


def _json(value: bool) -> None:
    if value:
        get_console().json = True


def _no_progress(value: bool) -> None:
    if value:
        get_console().show_progress = False


def global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_version,
            rich_help_panel=GLOBAL_PANEL,
            help="Print the version (more: genoctx doctor).",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", callback=_quiet, rich_help_panel=GLOBAL_PANEL, help="Warnings and errors only."
        ),
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            callback=_verbose,
            show_default=False,
            rich_help_panel=GLOBAL_PANEL,
            help="Say more; -vv also prints tracebacks.",
        ),
    ] = 0,
    color: Annotated[
        Color | None,
        typer.Option(
            "--color", callback=_color, rich_help_panel=GLOBAL_PANEL, help="Colour on stderr; default auto."
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            callback=_json,
            is_eager=True,  # the answer to --version depends on it
            rich_help_panel=GLOBAL_PANEL,
            help="One JSON object on stdout.",
        ),
    ] = False,
    no_progress: Annotated[
        bool,
        typer.Option(
            "--no-progress", callback=_no_progress, rich_help_panel=GLOBAL_PANEL, help="No progress lines."
        ),
    ] = False,
) -> None:
    """Teach a language model to read a genome half a million to a million bases at a time.

    A run from FASTA to report:

      genoctx ingest genome.fa.gz -o stores/g
      genoctx windows stores/g -o g.bed --context 1M --holdout chr2
      genoctx train config.toml -o runs/g
      genoctx report runs/g
    """
