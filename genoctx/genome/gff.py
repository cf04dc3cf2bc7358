"""GFF3 and GTF rows to a feature table: 1-based, inclusive coordinates, checked against the contigs."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple
from urllib.parse import unquote

from genoctx.errors import InputError
from genoctx.genome.annotation_file import AnnotationLines, is_feature, is_position
from genoctx.genome.feature_table import (
    CDS,
    EXON_ROW,
    INTERVAL,
    NO_PHASE,
    PARTIAL,
    SPAN,
    STOP,
    FeatureTable,
)
from genoctx.genome.feature_types import IGNORED, LANDMARKS, Kinds
from genoctx.genome.gff_attributes import row_nodes, says
from genoctx.genome.places import Place, Places

_STRANDS = {"+": 1, "-": -1, ".": 0, "?": 0}
_PHASES = {"0": 0, "1": 1, "2": 2, ".": NO_PHASE}
_PENDING = 1000  # features beyond the end that wait for the word that their sequence is a circle
_SHOWN = 3
_REGION = re.compile(r"##sequence-region\s+(\S+)\s+(\d{1,18})\s+(\d{1,18})\s*")


class Row(NamedTuple):
    """One line, checked."""

    number: int
    feature: str
    start: int
    """0-based."""
    end: int
    strand: int
    phase: int
    attributes: str


class _Part(NamedTuple):
    """A row, or what of it lies on one side of a circle's origin."""

    start: int
    end: int
    phase: int
    past: bool = False


class Gff:
    """Reads one file into ``table``; ``unknown`` counts features on sequences that the store lacks."""

    def __init__(self, lines: AnnotationLines, places: Places, whole: int | None = None) -> None:
        """With ``whole`` every row but landmarks is an interval of that class. Raises InputError."""
        self.path = lines.path
        self.table = FeatureTable()
        self.unknown: Counter[str] = Counter()
        self.matched = 0
        """Features on contigs of the store, of any type."""
        self.unused: Counter[str] = Counter()
        """Types of features that make no class."""
        self.notes: list[str] = []
        self._other_lengths: list[str] = []
        self._places = places
        self._whole = whole
        self._kinds = Kinds()
        self._circles: set[str] = set()
        self._pending: list[tuple[str, Place, Row]] = []
        self._gtf = lines.dialect == "gtf"
        self._read(lines)
        for name, place, row in self._pending:
            self._across_origin(name, place, row)
        if self._other_lengths:
            listed = "; ".join(self._other_lengths[:_SHOWN])
            self.notes.append(
                f"{self.path} was made for sequences of other lengths: {len(self._other_lengths):,} ({listed})"
            )

    def _read(self, lines: AnnotationLines) -> None:
        for number, line in lines:
            if line[0] in "#>":
                if line.startswith(("##FASTA", ">")):
                    lines.skip_rest()
                    return
                self._directive(line)
                continue
            fields = line.split("\t")
            if len(fields) != 9:
                if not is_feature(line):
                    continue
                if len(fields) != 8:
                    raise self._error(
                        number, f"{len(fields)} columns instead of 9", "separate the columns by tabs"
                    )
                fields.append("")
            name = fields[0]
            places = self._places.of(name)
            if places is None:
                name = unquote(name)  # GFF3 writes rare characters as %7C
                places = self._places.of(name)
                if places is None:
                    self.unknown[name] += 1
                    continue
            self.matched += 1
            row = self._row(number, fields)
            for place in places:
                self._place(name, place, row)

    def _row(self, number: int, fields: list[str]) -> Row:
        _, _, feature, first, last, _, strand, phase, attributes = fields
        if not (is_position(first) and is_position(last)):
            raise self._error(
                number,
                f"start {first[:30]!r} and end {last[:30]!r} are no positions",
                "they are counted from 1",
            )
        start, end = int(first) - 1, int(last)
        if start < 0:
            raise self._error(
                number, f"start {first}", "GFF and GTF count from 1; a file that counts from 0 is BED"
            )
        if start >= end:
            raise self._error(
                number, f"start {first} lies behind end {last}", "start is the lower of the two"
            )
        if strand not in _STRANDS:
            raise self._error(number, f"strand {strand!r}", "column 7 is +, -, ? or .")
        if phase not in _PHASES:
            raise self._error(number, f"phase {phase!r}", "column 8 is 0, 1, 2 or .")
        return Row(number, feature, start, end, _STRANDS[strand], _PHASES[phase], attributes)

    def _place(self, name: str, place: Place, row: Row) -> None:
        if place.length is None or row.end <= place.length:
            self._add(place, row, (_Part(row.start, row.end, row.phase),))
            return
        if len(self._pending) == _PENDING:
            raise self._beyond(*self._pending[0])
        self._pending.append((name, place, row))

    def _across_origin(self, name: str, place: Place, row: Row) -> None:
        """A feature that ends beyond a circle's length: its rest lies at the circle's beginning."""
        length = place.length or 0
        if name not in self._circles or row.end > 2 * length:
            raise self._beyond(name, place, row)
        rest = row.end - length
        if row.start >= length:
            self._add(place, row, (_Part(row.start - length, rest, row.phase, True),))
            return
        first, second = row.phase, row.phase
        if self._kinds[row.feature] == CDS:
            if row.phase == NO_PHASE:
                raise self._error(
                    row.number, "a CDS across the origin without phase", "column 8 is 0, 1 or 2"
                )
            if row.strand > 0:
                second = (row.phase - (length - row.start)) % 3
            else:
                first = (row.phase - rest) % 3
        self._add(place, row, (_Part(row.start, length, first), _Part(0, rest, second, True)))

    def _add(self, place: Place, row: Row, parts: tuple[_Part, ...]) -> None:
        attributes = row.attributes
        kind = self._kinds[row.feature]
        if self._whole is not None:
            kind = IGNORED if row.feature in LANDMARKS else INTERVAL + self._whole
        if kind == IGNORED:
            self.unused[row.feature] += 1
            if "Is_circular=true" in attributes:
                self._circles.add(self._places.names[place.contig])
            return
        if kind == CDS and says(attributes, "pseudo"):
            kind = EXON_ROW
        if kind in (CDS, STOP) and not row.strand:
            raise self._error(row.number, f"a {row.feature} without strand", "column 7 is + or - for it")
        trans_spliced = kind < SPAN and "trans-splicing" in attributes
        nodes = row_nodes(self.table, kind, place.contig, row.feature, attributes, self._gtf)
        if nodes is None:
            raise self._error(
                row.number,
                f"a {row.feature} without transcript_id",
                'column 9: gene_id "G"; transcript_id "T";',
            )
        for node in nodes:
            if kind == CDS and says(attributes, "partial"):
                self.table.flag(node, PARTIAL)
            for start, end, phase, past in parts:
                run = -1
                if trans_spliced:
                    run = self.table.new_node(place.contig)
                elif past:
                    run = self.table.node(place.contig, f"\tpast\t{node}")
                self.table.add(kind, start + place.shift, end + place.shift, row.strand, phase, node, run)

    def _directive(self, line: str) -> None:
        match = _REGION.fullmatch(line)
        places = self._places.of(match[1]) if match else None
        length = places[0].length if places else None
        if match and length is not None and match[2] == "1" and int(match[3]) != length:
            self._other_lengths.append(f"{match[1]} has {int(match[3]):,} bases there and {length:,} here")

    def _beyond(self, name: str, place: Place, row: Row) -> InputError:
        return self._error(
            row.number,
            f"the {row.feature} ends at {row.end:,}, but {name} has {place.length:,} bases",
            "does the file belong to this genome assembly? Only a sequence whose row says Is_circular=true "
            "may have features across its end",
        )

    def _error(self, number: int, what: str, hint: str) -> InputError:
        return InputError(f"{self.path}, line {number:,}: {what}", hint)
