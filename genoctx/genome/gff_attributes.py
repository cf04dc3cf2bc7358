"""Column 9 of GFF3 (``ID=x;Parent=y``) and GTF (``gene_id "x"; transcript_id "y";``): what belongs together."""

from __future__ import annotations

import re

from genoctx.genome.feature_table import INTERVAL, SPAN, TYPED, UNSPLICED, FeatureTable
from genoctx.genome.feature_types import names_a_kind_of_rna

_QUOTED = {key: re.compile(rf'(?:^|[;\s]){key}\s+"?([^";]*)') for key in ("gene_id", "transcript_id")}


def assigned(attributes: str, key: str) -> str:
    """The value of ``key`` (written with its ``=``) in GFF3 attributes, "" if there is none."""
    at = attributes.find(key)
    while at > 0 and attributes[at - 1] not in "; ":
        at = attributes.find(key, at + 1)
    if at < 0:
        return ""
    stop = attributes.find(";", at)
    return attributes[at + len(key) : stop if stop >= 0 else None].strip()


def quoted(attributes: str, key: str) -> str:
    """The value of ``gene_id`` or ``transcript_id`` in GTF attributes, quoted or not, "" if there is none."""
    match = _QUOTED[key].search(attributes)
    return match[1].strip() if match else ""


def says(attributes: str, word: str) -> bool:
    """Whether the attributes of either kind state that ``word`` is true."""
    return f"{word}=true" in attributes or f'{word} "true"' in attributes


def row_nodes(
    table: FeatureTable, kind: int, contig: int, feature: str, attributes: str, gtf: bool
) -> list[int] | None:
    """The genes or transcripts that a row is, or is a part of; None if it does not tell but should."""
    if kind >= INTERVAL:
        return [table.ground(contig)]
    nodes = (_gtf_nodes if gtf else _gff3_nodes)(table, kind, contig, feature, attributes)
    if nodes and kind == SPAN and names_a_kind_of_rna(feature):
        table.flag(nodes[0], TYPED | (UNSPLICED if feature.endswith(("tRNA", "rRNA")) else 0))
    return nodes


def _gff3_nodes(table: FeatureTable, kind: int, contig: int, feature: str, attributes: str) -> list[int]:
    parents = assigned(attributes, "Parent=")
    if kind != SPAN and parents:
        return [table.node(contig, parent) for parent in parents.split(",")]
    name = assigned(attributes, "ID=")
    node = table.node(contig, name) if name else table.new_node(contig)
    if parents:
        table.set_parent(node, table.node(contig, parents.split(",")[0]))
    return [node]


def _gtf_nodes(
    table: FeatureTable, kind: int, contig: int, feature: str, attributes: str
) -> list[int] | None:
    gene, transcript = quoted(attributes, "gene_id"), quoted(attributes, "transcript_id")
    if not (gene or transcript):
        # AUGUSTUS writes the bare names of genes and transcripts; their parts say the same
        return [] if kind == SPAN else None
    if not transcript or (kind == SPAN and feature.endswith("gene")):
        return [table.node(contig, f"\tgene\t{gene}")]
    # some files call the transcripts of all genes by one name
    node = table.node(contig, f"{gene}\t{transcript}")
    if gene:
        table.set_parent(node, table.node(contig, f"\tgene\t{gene}"))
    return [node]
