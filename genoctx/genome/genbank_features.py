"""Features of a GenBank record: from Biopython's objects to plain tuples, and from these to a feature table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from genoctx.errors import InputError
from genoctx.genome.feature_table import (
    CDS,
    EXON_ROW,
    INTERVAL,
    NO_PHASE,
    PARTIAL,
    SPAN,
    TYPED,
    UNSPLICED,
    UTR_ROW,
    FeatureTable,
)
from genoctx.genome.places import Place, Places
from genoctx.genome.region_classes import EXON, INTRON, REPEAT, UTR

if TYPE_CHECKING:
    from Bio.SeqFeature import SeqFeature

_RNAS = ("tRNA", "rRNA", "ncRNA", "tmRNA", "misc_RNA", "snRNA", "snoRNA", "scRNA")
# keys that make a class: parts of a transcript, genes, and intervals that are painted as they stand
_KINDS = {"CDS": CDS, "mRNA": UTR_ROW, **dict.fromkeys(_RNAS, EXON_ROW)}
_INTERVALS = {
    "exon": EXON,
    "intron": INTRON,
    "5'UTR": UTR,
    "3'UTR": UTR,
    **dict.fromkeys(
        ("repeat_region", "repeat_unit", "mobile_element", "transposon", "LTR", "satellite"), REPEAT
    ),
}
_GENE = "gene"


class Part(NamedTuple):
    """Consecutive bases of a feature."""

    start: int
    """0-based."""
    end: int
    """Exclusive."""
    strand: int
    """1, -1, or 0 where it is not known."""
    phase: int
    """Bases before the first whole codon, if the feature is coding."""


class Feature(NamedTuple):
    """One feature of a record, if its key makes a class."""

    contig: str
    """Name of the record."""
    key: str
    """``CDS``, ``tRNA``, ``repeat_region`` ..."""
    parts: tuple[Part, ...]
    """In reading order."""
    locus: str
    """``locus_tag``, or the name of the gene, or ``""``: what ties it to its gene."""
    partial: bool
    """An end is not known (``<`` or ``>``)."""
    pseudo: bool
    """Of a pseudogene."""
    trans_spliced: bool
    """The parts do not come from one molecule."""


def features_of(
    found: Iterable[SeqFeature], contig: str, length: int, where: str
) -> tuple[list[Feature], int]:
    """The features of the record ``contig`` that make a class, and how many parts lie in other records.

    ``where`` says which record, for messages. Raises InputError for a place that is none.
    """
    features: list[Feature] = []
    remote = 0
    for feature in found:
        key = feature.type
        if key not in _KINDS and key not in _INTERVALS and key != _GENE:
            continue
        location = feature.location
        if location is None:
            raise InputError(
                f"{where}: a {key} whose place cannot be read", "correct its location, or remove it"
            )
        parts: list[Part] = []
        phase = _phase(feature)
        for part in location.parts:
            start, end = int(part.start), int(part.end)
            if part.ref is not None:
                remote += 1
            elif not 0 <= start <= end <= length:
                raise InputError(
                    f"{where}: the {key} {start + 1}..{end} leaves the record, which has {length:,} bases",
                    "is the record complete?",
                )
            elif start < end:  # 10^11 lies between two bases
                parts.append(Part(start, end, part.strand or 0, phase))
            phase = (phase - (end - start)) % 3
        if parts:
            fuzzy = any(str(end)[:1] in "<>" for part in location.parts for end in (part.start, part.end))
            whole = not fuzzy and len(parts) == len(location.parts)
            features.append(_feature(feature, contig, tuple(parts), whole))
    return features, remote


def _phase(feature: SeqFeature) -> int:
    start = (feature.qualifiers.get("codon_start") or ["1"])[0]
    return int(start) - 1 if start in ("1", "2", "3") else 0


def _feature(feature: SeqFeature, contig: str, parts: tuple[Part, ...], whole: bool) -> Feature:
    qualifiers = feature.qualifiers
    return Feature(
        contig=contig,
        key=feature.type,
        parts=parts,
        locus=(qualifiers.get("locus_tag") or qualifiers.get("gene") or [""])[0],
        partial=not whole,
        pseudo="pseudo" in qualifiers or "pseudogene" in qualifiers,
        trans_spliced="trans_splicing" in qualifiers,
    )


def feature_table(features: Sequence[Feature], places: Places) -> FeatureTable:
    """The rows of ``features``; those on records that the store does not have are left out."""
    table = FeatureTable()
    for feature in features:
        for place in places.of(feature.contig) or ():
            _add(table, feature, place)
    return table


def _add(table: FeatureTable, feature: Feature, place: Place) -> None:
    gene = table.node(place.contig, feature.locus) if feature.locus else -1
    if feature.key in _INTERVALS:
        kind, node = INTERVAL + _INTERVALS[feature.key], table.ground(place.contig)
    elif feature.key == _GENE:
        kind, node = SPAN, gene if gene >= 0 else table.new_node(place.contig)
        table.flag(node, TYPED)
    else:
        kind, node = _KINDS[feature.key], table.new_node(place.contig)
        if feature.pseudo:
            kind = EXON_ROW
        if kind == EXON_ROW:
            table.flag(node, TYPED | (UNSPLICED if feature.key in ("tRNA", "rRNA") else 0))
        if feature.partial:
            table.flag(node, PARTIAL)
        if gene >= 0:
            table.set_parent(node, gene)
    run = node
    before: Part | None = None
    for part in feature.parts:
        if before is not None and not _follows(before, part, feature.trans_spliced):
            run = table.new_node(place.contig)
        phase = part.phase if kind == CDS else NO_PHASE
        table.add(kind, part.start + place.shift, part.end + place.shift, part.strand, phase, node, run)
        before = part


def _follows(before: Part, part: Part, trans_spliced: bool) -> bool:
    """Whether an intron may lie between two parts: not across the origin of a circle."""
    if trans_spliced or before.strand != part.strand:
        return False
    return part.start > before.start if part.strand >= 0 else part.end < before.end
