"""Different spellings of one contig's name, as UCSC, Ensembl, NCBI and alignment tools write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_VERSION = re.compile(r"\.[0-9]+$")
_OF_ASSEMBLY = re.compile(r"[^.]+\.(chr.+)", re.IGNORECASE)

_Spell = Callable[[str], set[str]]


def counterparts(wanted: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """For each of ``wanted`` the one of ``names`` that is another spelling of it; without those that have
    none, or more than one."""
    found: dict[str, str] = {}
    left = list(wanted)
    for of_wanted, of_name in _RULES:
        asked = {spelling for name in left for spelling in of_wanted(name)}
        meant: dict[str, set[str]] = {}
        for name in names if left else ():
            for spelling in of_name(name) & asked:
                meant.setdefault(spelling, set()).add(name)
        for name in left:
            others = {other for spelling in of_wanted(name) for other in meant.get(spelling, ())}
            if len(others) == 1:
                found[name] = others.pop()
        left = [name for name in left if name not in found]
    return found


def _letter_case(name: str) -> set[str]:
    return {name.casefold()}


def _without_chr(name: str) -> set[str]:
    bare = name.casefold().removeprefix("chr")
    return {"mt" if bare == "m" else bare}


def _without_version(name: str) -> set[str]:
    return {_VERSION.sub("", name.casefold())}


def _fields(name: str) -> set[str]:
    """``gi|9626243|ref|NC_001416.1|``: each of its fields that is long enough to name a sequence."""
    return {name.casefold(), *(part.casefold() for part in name.split("|") if len(part) > 3)}


def _without_assembly(name: str) -> set[str]:
    """``hg38.chr16``, as in multiple alignments."""
    match = _OF_ASSEMBLY.fullmatch(name)
    return _without_chr(match[1] if match else name)


_RULES: tuple[tuple[_Spell, _Spell], ...] = (
    (_letter_case, _letter_case),
    (_without_chr, _without_chr),
    # one side only: NC_1 may stand for NC_1.9, but NC_1.8 is another sequence than NC_1.9
    (_letter_case, _without_version),
    (_without_version, _letter_case),
    (_fields, _fields),
    (_without_assembly, _without_assembly),
)
"""From the surest to the boldest; the first that means exactly one contig decides."""
