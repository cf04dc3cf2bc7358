"""BED rows to a feature table: intervals of one class, intervals that name their class, BED12 gene models.

Coordinates are 0-based and half-open, and checked against the contigs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from genoctx.errors import InputError
from genoctx.genome.annotation_file import AnnotationLines, is_feature, is_position
from genoctx.genome.bed import parse_span
from genoctx.genome.feature_table import CDS, EXON_ROW, INTERVAL, NO_PHASE, SPAN, FeatureTable
from genoctx.genome.places import Place, Places
from genoctx.genome.region_classes import CLASSES, EXON

_STRANDS = {"+": 1, "-": -1, ".": 0, "?": 0}
_MODEL = 12  # columns of a gene model


class Row(NamedTuple):
    """One line, its interval checked."""

    where: str
    """File and line, for messages."""
    start: int
    end: int
    fields: list[str]

    @property
    def name(self) -> str:
        return self.fields[3] if len(self.fields) > 3 else ""


class Bed:
    """Reads one file into ``table``; ``unknown`` counts rows on sequences that the store lacks."""

    def __init__(self, lines: AnnotationLines, places: Places, whole: int | None = None) -> None:
        """With ``whole`` every row is an interval of that class; exons of one name and strand are one gene.

        Raises InputError.
        """
        self.path = lines.path
        self.table = FeatureTable()
        self.unknown: Counter[str] = Counter()
        self.matched = 0
        self.unused: Counter[str] = Counter()
        """Empty: every row makes a class."""
        self.notes: list[str] = []
        self._whole = whole
        self._exon_names: set[str] = set()
        add: Callable[[Row, Place], None] | None = None
        for number, line in lines:
            if not is_feature(line):
                continue
            row = self._row(number, line)
            add = add or self._way(row)
            found = places.of(row.fields[0])
            if found is None:
                self.unknown[row.fields[0]] += 1
                continue
            self.matched += 1
            for place in found:
                if place.length is not None and row.end > place.length:
                    raise InputError(
                        f"{row.where}: the interval ends at {row.end:,}, "
                        f"but {row.fields[0]} has {place.length:,} bases",
                        "does the file belong to this genome assembly?",
                    )
                add(row, place)
        if len(self._exon_names) == 1:
            # one name for all is no name: nothing tells which exons are of one gene
            self.table.make_intervals(EXON)

    def _row(self, number: int, line: str) -> Row:
        fields = line.split("\t") if "\t" in line else line.split()
        where = f"{self.path}, line {number:,}"
        if len(fields) < 3:
            raise InputError(f"{where}: {len(fields)} columns", "BED has at least contig, start, end")
        if not (is_position(fields[1]) and is_position(fields[2])):
            raise InputError(
                f"{where}: start {fields[1][:30]!r} and end {fields[2][:30]!r} are no positions",
                "BED counts from 0",
            )
        return Row(where, *parse_span(fields[1], fields[2], where), fields)

    def _way(self, first: Row) -> Callable[[Row, Place], None]:
        """What to do with each row, told by the first."""
        if self._whole is not None:
            return self._exon if self._whole == EXON else self._of_class
        if len(first.fields) >= _MODEL:
            return self._model
        if first.name in CLASSES:
            return self._named
        raise InputError(
            f"{first.where}: nothing tells what these intervals are",
            f"say it with {self.path}=CLASS, or write the class into column 4: {', '.join(CLASSES)}",
        )

    def _of_class(self, row: Row, place: Place) -> None:
        assert self._whole is not None
        self._interval(row, place, self._whole)

    def _named(self, row: Row, place: Place) -> None:
        if row.name not in CLASSES:
            raise InputError(
                f"{row.where}: {row.name!r} in column 4 is no class, as those of the lines before are",
                f"the classes are {', '.join(CLASSES)}",
            )
        self._interval(row, place, CLASSES.index(row.name))

    def _exon(self, row: Row, place: Place) -> None:
        if not row.name.strip("."):
            self._interval(row, place, EXON)
            return
        self._exon_names.add(row.name)
        strand = _strand(row)
        node = self.table.node(place.contig, row.name)
        self.table.add(EXON_ROW, row.start + place.shift, row.end + place.shift, strand, NO_PHASE, node)

    def _interval(self, row: Row, place: Place, number: int) -> None:
        node = self.table.ground(place.contig)
        self.table.add(INTERVAL + number, row.start + place.shift, row.end + place.shift, 0, NO_PHASE, node)

    def _model(self, row: Row, place: Place) -> None:
        """A transcript: blocks are exons, what of them lies in the thick part is coding."""
        blocks, (first, last) = _blocks(row)
        strand = _strand(row)
        if first < last and not strand:
            raise InputError(f"{row.where}: a coding part without strand", "column 6 is + or - for it")
        node = self.table.new_node(place.contig)
        parts = [(SPAN, row.start, row.end)]
        parts += [(EXON_ROW, start, end) for start, end in blocks]
        parts += [(CDS, max(start, first), min(end, last)) for start, end in blocks]
        for kind, start, end in parts:
            if start < end:
                self.table.add(kind, start + place.shift, end + place.shift, strand, NO_PHASE, node)


def _strand(row: Row) -> int:
    sign = row.fields[5] if len(row.fields) > 5 else "."
    if sign not in _STRANDS:
        raise InputError(f"{row.where}: strand {sign!r}", "column 6 is +, - or .")
    return _STRANDS[sign]


def _blocks(row: Row) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """The blocks and the thick part of a BED12 row. Raises InputError."""
    if len(row.fields) < _MODEL:
        raise InputError(
            f"{row.where}: {len(row.fields)} columns instead of {_MODEL}", "as in the lines before"
        )
    thick, (count, sizes, starts) = row.fields[6:8], row.fields[9:12]
    lists = [text.rstrip(",").split(",") for text in (sizes, starts)]
    if not all(map(is_position, (*thick, count, *lists[0], *lists[1]))):
        raise InputError(
            f"{row.where}: columns 7, 8 and 10 to 12 hold no positions", "a BED12 has blocks there"
        )
    if not int(count) == len(lists[0]) == len(lists[1]):
        raise InputError(
            f"{row.where}: {count} blocks, but {len(lists[0])} sizes and {len(lists[1])} starts",
            "columns 10 to 12 describe the same blocks",
        )
    blocks = [(row.start + int(s), row.start + int(s) + int(n)) for n, s in zip(*lists, strict=True)]
    reach = row.start
    for start, end in blocks:
        if start < reach or start >= end or end > row.end:
            raise InputError(
                f"{row.where}: the block {start:,}-{end:,} is empty, overlaps another or leaves the interval",
                "block starts in column 12 rise and count from the interval's start",
            )
        reach = end
    first, last = int(thick[0]), int(thick[1])
    if first > last or (first < last and not row.start <= first < last <= row.end):
        raise InputError(
            f"{row.where}: the coding part {first:,}-{last:,} leaves the interval",
            "columns 7 and 8 lie inside",
        )
    return blocks, (first, last)
