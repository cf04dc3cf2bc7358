"""What the type column of GFF3 and GTF means to us: Sequence Ontology terms, and what files write instead."""

from __future__ import annotations

import re

from genoctx.genome.feature_table import CDS, EXON_ROW, INTERVAL, SPAN, STOP, UTR_ROW
from genoctx.genome.region_classes import INTRON, REPEAT

IGNORED = -1

# rows that are a whole sequence, not a feature of it
LANDMARKS = frozenset(
    [
        "region",
        "chromosome",
        "chromosome_part",
        "contig",
        "scaffold",
        "supercontig",
        "ultracontig",
        "plasmid",
        "assembly",
        "source",
        "golden_path_fragment",
        "biological_region",
        "databank_entry",
    ]
)

# genes and transcripts of which the type does not tell whether they are coding
_UNTYPED = frozenset(
    ("gene", "mRNA", "transcript", "primary_transcript", "processed_transcript", "protein_coding_gene")
)

_SPANS = re.compile(r".*(?:RNA|transcript|gene|gene_segment|transcript_variant|ribozyme)$")
_REPEATS = re.compile(
    r".*(?:repeat|repeat_region|repeat_unit|transpos(?:on|able_element|on_fragment)|mobile_(?:genetic_)?element"
    r"|satellite|satellite_DNA|insertion_sequence|[LS]INE|[LS]INE_element|helitron|MITE|LTR)$"
)


def kind_of(feature: str) -> int:
    """The kind of row that a ``feature`` (column 3) is, or IGNORED."""
    if feature.endswith("exon"):
        return EXON_ROW
    if feature == "CDS":
        return CDS
    if feature == "stop_codon":
        return STOP
    if feature.upper().endswith("UTR"):
        return UTR_ROW
    if _SPANS.fullmatch(feature):
        return SPAN
    if feature == "intron":
        return INTERVAL + INTRON
    if _REPEATS.fullmatch(feature):
        return INTERVAL + REPEAT
    return IGNORED


def names_a_kind_of_rna(feature: str) -> bool:
    """Whether a gene or transcript of this type is known not to be coding, or to be a pseudogene."""
    return feature not in _UNTYPED


class Kinds(dict[str, int]):
    """``kind_of``, each type looked at once."""

    def __missing__(self, feature: str) -> int:
        self[feature] = kind = kind_of(feature)
        return kind
