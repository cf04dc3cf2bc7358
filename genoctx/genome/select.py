"""Which records of the input are read, under which name rules, and which stretches of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Literal, NamedTuple

from genoctx.errors import InputError, UsageError
from genoctx.genome.bed import bed_rows
from genoctx.genome.names import suggest

_REGION = re.compile(r"(.+):([0-9][0-9,]{0,23})-([0-9][0-9,]{0,23})")
_WILD = re.compile(r"[*?[]")


@dataclass(frozen=True)
class ReadOptions:
    """How to read sequence files; the defaults read every record and take nothing on trust."""

    gaps: Literal["error", "drop", "n"] = "error"
    """What ``-``, ``.`` and ``~`` mean: an error, nothing, or a base N."""
    rename: bool = False
    """A name that is taken gets ``.2``, ``.3`` ... instead of being an error."""
    contigs: tuple[str, ...] = ()
    """Names, or shell wildcards, of the only records to read. An exact name means itself alone."""
    skip: tuple[str, ...] = ()
    """Names, or shell wildcards, of records to leave out."""
    regions: tuple[str, ...] = ()
    """The only stretches to read: ``chr5:1-80`` (1-based, inclusive), a whole contig's name, or a BED file."""

    def __post_init__(self) -> None:
        if self.gaps not in ("error", "drop", "n"):
            raise UsageError(f"gaps = {self.gaps!r}", "choose one of: error, drop, n")


class Stretch(NamedTuple):
    """A part of a record that becomes a contig of its own."""

    start: int
    """0-based."""
    end: int
    """Exclusive."""
    name: str
    """``chr5:1-80``: 1-based and inclusive, as genome browsers write it."""


def parse_region(text: str) -> tuple[str, int, int] | None:
    """``chr5:1,000-2,000`` as (contig, 0-based start, exclusive end); None where it is no such text.

    The last colon counts, because names hold colons too. Raises UsageError for an interval that is empty.
    """
    match = _REGION.fullmatch(text)
    if match is None:
        return None
    first, last = (int(number.replace(",", "")) for number in match.groups()[1:])
    if not 1 <= first <= last:
        raise UsageError(
            f"the region {text} is empty", "both ends are counted from 1 and belong to it: chr5:1-80"
        )
    return match[1], first - 1, last


def format_region(contig: str, start: int, end: int) -> str:
    """``chr5:1-80`` of 0-based ``start`` and exclusive ``end``."""
    return f"{contig}:{start + 1}-{end}"


class Selection:
    """What the options choose, for all input files together: share one between them.

    ``choose`` is asked once per record. Whether an option named something that no file has is known only at
    the end: ``unused`` tells, ``require_used`` raises.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._keep = _Patterns("contigs", options.contigs)
        self._skip = _Patterns("skip", options.skip)
        self._regions = _Regions(options.regions)
        self.active = bool(options.contigs or options.skip or options.regions)
        """Whether anything is chosen at all."""
        self.names: list[str] = []
        """Every record that was asked about, while ``active``."""

    def choose(self, name: str) -> tuple[Stretch, ...] | None:
        """None to leave the record out, ``()`` to read it whole, or its stretches by start.

        Raises InputError where a name turns out to mean two things.
        """
        if not self.active:
            return ()
        self.names.append(name)
        left_out = self._skip.match(name)
        left_out |= bool(self._keep) and not self._keep.match(name)
        stretches = self._regions.of(name) if self._regions else ()
        return None if left_out else stretches

    def unused(self) -> tuple[str, ...]:
        """What the options name and no record was called, as the user wrote it."""
        return (*self._keep.unused(), *self._skip.unused(), *self._regions.unused())

    def require_used(self) -> None:
        """InputError for the first of ``unused``, with what there is."""
        for what, missing in (
            ("contigs", self._keep.unused()),
            ("skip", self._skip.unused()),
            ("regions", self._regions.unused()),
        ):
            for name in missing:
                contig = self._regions.contig(name) if what == "regions" else name
                raise InputError(
                    f"{what} {name}: no record is called {contig!r}", suggest(contig, self.names, "the input")
                )


class _Patterns:
    """Names and wildcards; an exact name means itself alone, wherever in the input it stands."""

    def __init__(self, what: str, patterns: Iterable[str]) -> None:
        self._what = what
        self._first: dict[str, str] = dict.fromkeys(patterns, "")
        """Per pattern the first name it matched."""
        self._wild = {p: re.compile(translate(p)) for p in self._first if _WILD.search(p)}

    def __bool__(self) -> bool:
        return bool(self._first)

    def match(self, name: str) -> bool:
        found = name in self._first
        if found and self._first[name] != name:
            if self._first[name]:
                raise InputError(
                    f"{self._what} {name!r} is the name of a contig, but it was taken for a wildcard "
                    f"that means {self._first[name]!r}, which came first",
                    f"write {_WILD.sub(lambda sign: f'[{sign[0]}]', name)} for this contig alone",
                )
            self._first[name] = name
            self._wild.pop(name, None)
        for pattern, wild in self._wild.items():
            if wild.match(name):
                found = True
                self._first[pattern] = self._first[pattern] or name
        return found

    def unused(self) -> list[str]:
        return [pattern for pattern, name in self._first.items() if not name]


class _Regions:
    """Stretches by contig, from the command line and from BED files."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts: dict[str, str] = {}
        """Per text that was given, or interval of a BED file, the contig it lies on."""
        self._whole: set[str] = set()
        """Texts that may be a contig's own name."""
        self._stretches: dict[str, dict[Stretch, str]] = {}
        self._used: set[str] = set()
        """Contigs that were there."""
        for text in texts:
            self._add(text)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def _add(self, text: str) -> None:
        region = parse_region(text)
        if region is not None:
            self._add_stretch(text, *region)
            self._whole.add(text)
        elif Path(text).is_file():
            for where, contig, (start, end) in bed_rows(text):
                self._add_stretch(where, contig, start, end)
        elif text.endswith((".bed", ".gz", ".txt")) or "/" in text:
            raise InputError(f"cannot read {text}: no such file", "check the path")
        else:
            self._texts[text] = text
            self._whole.add(text)

    def _add_stretch(self, text: str, contig: str, start: int, end: int) -> None:
        stretch = Stretch(start, end, format_region(contig, start, end))
        self._texts[text] = contig
        self._stretches.setdefault(contig, {}).setdefault(stretch, text)

    def of(self, name: str) -> tuple[Stretch, ...] | None:
        whole = name in self._whole
        if whole and self._texts[name] != name:
            self._take_for_name(name)
        stretches = self._stretches.get(name, {})
        if whole and stretches:
            raise InputError(
                f"regions ask for {name!r} whole and for {next(iter(stretches)).name}", "choose one of them"
            )
        if whole or stretches:
            self._used.add(name)
        if whole:
            return ()
        return tuple(sorted(stretches)) or None

    def _take_for_name(self, text: str) -> None:
        """A text like ``HLA:1-80`` turns out to be a contig's name: then it is no stretch of ``HLA``."""
        contig = self._texts[text]
        if contig in self._used:
            raise InputError(
                f"the region {text} is the name of a contig and also a stretch of {contig!r}, which came first",
                "rename one of the two contigs",
            )
        self._texts[text] = text
        stretches = self._stretches[contig]
        for stretch in [stretch for stretch, source in stretches.items() if source == text]:
            del stretches[stretch]
        if not stretches:
            del self._stretches[contig]

    def unused(self) -> list[str]:
        return [text for text, contig in self._texts.items() if contig not in self._used]

    def contig(self, text: str) -> str:
        return self._texts[text]
