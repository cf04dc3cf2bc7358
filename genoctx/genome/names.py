"""Contig names as a user writes them: exact, or with shell wildcards; never silently empty."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from genoctx.errors import InputError
from genoctx.genome.spelling import counterparts

_SHOWN = 8
_COMPARED = 20_000  # names that difflib is asked about: it takes microseconds for each
_DIGITS = re.compile(r"[0-9]+")


def natural_key(name: str) -> tuple[str, str]:
    """Sorts names as people do: chr2 before chr10 before chrX, capitals or not."""
    return _DIGITS.sub(_number, name.casefold()), name


def _number(match: re.Match[str]) -> str:
    """Digits so that text order is the order of numbers: how many there are goes first."""
    digits = match[0].lstrip("0")
    return f"{len(digits):06}{digits}"


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


def suggest(name: str, names: Sequence[str], owner: str = "the store") -> str:
    """A hint for a name that is not among ``names`` of ``owner``: another spelling, or what there is."""
    other = counterparts([name], names).get(name)
    if other is not None:
        return f"{owner} calls it {other!r}"
    close = difflib.get_close_matches(name, names, n=1) if len(names) <= _COMPARED else []
    if close:
        return f"did you mean {close[0]!r}?"
    return f"{owner} has {_listed(names)}"


def require_contigs(found: Iterable[str], names: Sequence[str], where: str) -> None:
    """InputError unless every name ``found`` in a BED or GFF file is one of a store's contig ``names``.

    The error lists both sides and, where one naming is another spelling of the other (``1`` and ``chr1``,
    ``MT`` and ``chrM``, with and without version), how they would match. ``where`` is the file, or file
    and line.
    """
    known = set(names)
    used = list(dict.fromkeys(found))
    missing = [name for name in used if name not in known]
    if not missing:
        return
    if len(used) == 1:
        what = f"no contig is called {missing[0]!r}"
    else:
        what = f"{len(missing):,} of {len(used):,} names are no contig: {_listed(missing)}"
    raise InputError(f"{where}: {what}; the store has {_listed(names)}", _remedy(missing, used, names))


def _remedy(missing: Sequence[str], used: Sequence[str], names: Sequence[str]) -> str:
    pairs = counterparts(missing, names)
    if not pairs:
        return "does the file belong to this genome assembly?"
    listed = _listed([f"{name} = {other}" for name, other in pairs.items()])
    hint = f"they would match as {listed}: rename them in one of the files"
    if len(pairs) < len(missing):
        lost = [name for name in missing if name not in pairs]
        return f"{hint}, and remove what this genome does not have ({_listed(lost)})"
    # a rule for all lines is safe only where no line is right already
    if len(missing) == len(used):
        if all(other == f"chr{name}" for name, other in pairs.items()):
            return f"{hint}, for instance sed '/^#/!s/^/chr/' FILE"
        if all(name == f"chr{other}" for name, other in pairs.items()):
            return f"{hint}, for instance sed 's/^chr//' FILE"
    return hint


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names):,} in all)" if len(names) > _SHOWN else "")
