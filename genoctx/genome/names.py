"""Contig names as a user writes them: exact, or with shell wildcards; never silently empty."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from genoctx.errors import InputError

_SHOWN = 8


def match_names(names: Sequence[str], patterns: Iterable[str], what: str) -> list[str]:
    """The ``names`` that any of ``patterns`` means, in their own order.

    An exact name means itself alone, even with a ``*`` in it. Raises InputError for a pattern that means
    nothing; ``what`` says where it was written.
    """
    known = set(names)
    found: set[str] = set()
    for pattern in patterns:
        matches = {pattern} if pattern in known else {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise InputError(f"{what}: no contig is called {pattern!r}", suggest(pattern, names))
        found |= matches
    return [name for name in names if name in found]


def suggest(name: str, names: Sequence[str]) -> str:
    """A hint for a name that is not among ``names``: another spelling of it, or what there is."""
    bare = name.removeprefix("chr")
    for other in (f"chr{bare}", bare, name.upper(), name.lower()):
        if other in names:
            return f"the store calls it {other!r}"
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(names[:_SHOWN]) + (f", ... ({len(names):,} in all)" if len(names) > _SHOWN else "")
    return f"the store has {shown}"
