"""A verb as one rank of many, and as the process that starts the ranks: who says how it ended, and with which code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import typer

from genoctx.cli.app import explain, in_our_terms
from genoctx.cli.console import Console
from genoctx.errors import GenoctxError, LostContact, StoppedOnRequest, UsageError, is_shared
from genoctx.run.launch import Place, announce, follow_launcher, hand_over

T = TypeVar("T")


def as_rank(here: Place, work: Callable[[], T], console: Console) -> T:
    """What ``work`` returns. An error ends the process, said once by whoever is there to say it.

    Ranks that ``--nproc`` started leave it to their launcher, and all others to the first rank.
    """
    follow_launcher()
    announce(here.rank, ready=False)
    try:
        return work()
    except BaseException as error:
        known = error if isinstance(error, KeyboardInterrupt) else in_our_terms(error, console)
        if isinstance(known, GenoctxError) and is_shared(known):
            told = hand_over(here.rank, known)
            if not told and here.rank == 0:
                console.error(known)
            # an agent takes any other code for a crash: ours needs none, torchrun's would start the ranks again
            done = told or (isinstance(known, StoppedOnRequest) and _restarts())
            raise typer.Exit(0 if done else known.exit_code) from None
        lost = isinstance(known, LostContact)
        said = not lost and not hand_over(here.rank, known)
        _end(known, console, said=said)


def _restarts() -> bool:
    """Whether torchrun would start ranks again that end with an exit code (``--max-restarts``)."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def _end(error: BaseException, console: Console, *, said: bool) -> NoReturn:
    """Leave at once: whoever waits for a rank that is gone is not waited for."""
    code = explain(error, console) if said else getattr(error, "exit_code", 130)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def refuse_nested(nproc: int, here: Place | None) -> None:
    """UsageError for ``--nproc`` in a process that is one rank of somebody else's already."""
    if nproc > 1 and here is not None and here.launcher != "genoctx":
        raise UsageError(
            f"--nproc {nproc} inside rank {here.rank} of {here.size} that {here.launcher} started",
            "leave --nproc out: the ranks are there",
        )
