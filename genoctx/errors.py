"""The one family of errors a user sees: what happened, where, and what to do next.

Exit codes (docs/cli.md): 0 done, 1 failed, 2 wrong usage, input or config, 3 a check said no,
4 would not fit, 75 stopped on request and resumable, 130 interrupted.
"""

from __future__ import annotations

import errno

_FULL = {errno.ENOSPC, errno.EDQUOT}


class GenoctxError(Exception):
    """An error with a remedy.

    ``message`` says what is wrong and where (file, line, contig, position); ``hint`` names the
    next command or edit that helps. The command line prints both and exits with ``exit_code``.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GenoctxError):
    """A wrong argument, or an output that exists already."""

    exit_code = 2


class ConfigError(GenoctxError):
    """A configuration file, preset or ``--set`` value that cannot be used."""

    exit_code = 2


class InputError(GenoctxError):
    """A genome, table, run or checkpoint that is broken or does not fit the others."""

    exit_code = 2


class CheckFailed(GenoctxError):
    """A check the user asked for said no (leakage limit, selftest, ``--fail-above``)."""

    exit_code = 3


class WouldNotFit(GenoctxError):
    """The plan exceeds the memory or disk of this machine."""

    exit_code = 4


class StoppedOnRequest(GenoctxError):
    """SIGTERM, SIGINT or a time limit: state is saved and the same command resumes."""

    exit_code = 75


class NoAnswer(GenoctxError):
    """Another rank is there, perhaps, and has not answered for as long as one is waited for."""


class LostContact(GenoctxError):
    """Another rank is gone and this one cannot go on; whoever started the ranks says which."""


_SHARED = "every rank"


def shared(kind: type[GenoctxError], message: str, hint: str) -> GenoctxError:
    """An error that every rank raises at the same place, marked so that one of them says it."""
    error = kind(message, hint)
    error.add_note(_SHARED)
    return error


def is_shared(error: BaseException) -> bool:
    """Whether every rank raises this error. All have one config, and all stop on request together."""
    return isinstance(error, StoppedOnRequest | ConfigError) or _SHARED in getattr(error, "__notes__", ())


def from_os_error(error: OSError) -> GenoctxError | None:
    """What the operating system refused, in our own terms; None for what names neither a disk nor a file."""
    if error.errno in _FULL:
        where = f" while writing {error.filename}" if error.filename else ""
        return GenoctxError(
            f"no space left on the device{where}",
            "free some space, or choose another place with -o; finished files are intact",
        )
    if error.filename and error.strerror:
        return GenoctxError(f"{error.filename}: {error.strerror}", "check the path and its permissions")
    return None
