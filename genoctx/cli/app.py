"""The command line as a function, and the one place where errors become text and exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from genoctx.cli.console import Console, get_console, set_console
from genoctx.cli.interrupt import came
from genoctx.cli.options import global_options
from genoctx.cli.verbs import HELP_NAMES, VERBS, LazyGroup
from genoctx.errors import GenoctxError, UsageError, from_os_error

EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line in this process; returns the exit code."""
    console = set_up_console()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        command = build_command()
        if "_GENOCTX_COMPLETE" in os.environ:
            command.main(args, prog_name="genoctx")
        with command.make_context("genoctx", args or ["--help"]) as ctx:
            code = command.invoke(ctx)
        sys.stdout.flush()
    except BaseException as error:
        return explain(error, console)
    return code if isinstance(code, int) else 0


def set_up_console() -> Console:
    """A fresh console in its defaults, made the current one."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a contig may be called what this locale cannot spell
        sys.stdout.reconfigure(errors="backslashreplace")
    set_console(Console())
    return get_console()


def build_command() -> Any:
    """The command tree: one entry per verb, none of them imported yet."""
    app = typer.Typer(cls=LazyGroup, context_settings=HELP_NAMES, pretty_exceptions_enable=False)
    app.callback()(global_options)
    for verb in VERBS.values():
        app.command(verb.name, help=verb.line, rich_help_panel=verb.panel)(_listed)
    return typer.main.get_command(app)


def _listed() -> None:
    """Stands in the top-level help for a verb that is not imported."""


def explain(error: BaseException, console: Console) -> int:
    """Say what went wrong, in the words for its kind; returns the exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return EXIT_CLOSED_PIPE
    if console.verbosity >= 2:
        console.info("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, KeyboardInterrupt | typer.Abort) or (came() and as_genoctx_error(error) is None):
        console.info("interrupted")
        return EXIT_INTERRUPTED
    known = in_our_terms(error, console)
    console.error(known)
    return known.exit_code


def in_our_terms(error: BaseException, console: Console) -> GenoctxError:
    """``error`` as one of ours; the traceback of one that nobody foresaw is kept in a file."""
    known = as_genoctx_error(error)
    return _unexpected(error, console) if known is None else known


def as_genoctx_error(error: BaseException) -> GenoctxError | None:
    """``error`` in our own terms, or None if nobody foresaw it."""
    if isinstance(error, GenoctxError):
        return error
    if hasattr(
        error, "format_message"
    ):  # click's and typer's own: their common base has moved between versions
        return _usage(error)
    return from_os_error(error) if isinstance(error, OSError) else None


def _usage(error: Any) -> UsageError:
    message, _, guess = error.format_message().partition(" Did you mean ")
    close = getattr(error, "possibilities", None)
    if close:
        message, guess = error.message, " or ".join(repr(name) for name in sorted(close))
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "genoctx"
    hint = f"did you mean {guess.rstrip('?')}?" if guess else f"see `{path} --help`"
    return UsageError(" ".join(message.split()).replace(": Value error, ", ": "), hint)


def _unexpected(error: BaseException, console: Console) -> GenoctxError:
    text = str(error).strip().splitlines()
    message = f"unexpected {type(error).__name__}" + (f": {text[0]}" if text else "")
    if console.verbosity >= 2:
        return GenoctxError(message)
    with tempfile.NamedTemporaryFile(
        "w", prefix="genoctx-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.write(f"{' '.join(sys.argv)}\n")
        traceback.print_exception(error, file=log)
    return GenoctxError(message, f"the traceback is in {log.name}; -vv prints it here")


def _silence_stdout() -> None:
    """Keep the interpreter's last flush from complaining about the closed pipe again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
