"""From the rows of an annotation to what is painted: intervals per class, and ends that can be checked.

- An exon of a transcript with a coding part is UTR where it is not CDS. An exon of any other is ncRNA; but
  if the file mentions no CDS at all and no kind of RNA for the transcript, it is exon, which says less.
- What lies inside a transcript and in no exon is intron.
- A transcript with a coding part and no exon rows is UTR before and behind it.
- A gene or transcript without any parts is its own exon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from genoctx.genome.feature_table import (
    EXON_ROW,
    INTERVAL,
    NO_PHASE,
    PARTIAL,
    SPAN,
    STOP,
    TYPED,
    UNSPLICED,
    UTR_ROW,
    Columns,
    FeatureTable,
    Nodes,
)
from genoctx.genome.layers import Collector, Layers
from genoctx.genome.places import Places
from genoctx.genome.region_classes import EXON, INTRON, NCRNA, UTR
from genoctx.genome.spans import Groups, Spans, gaps, group, hulls

_BATCH = 1 << 19
"""Rows that are worked on together: temporary arrays are several times as large as the rows."""


class Models(NamedTuple):
    """What one annotation says, in the coordinates of ``codes.u8``."""

    layers: Layers
    """Clipped to the contigs."""
    contigs: np.ndarray
    """int32: the contigs with a gene model, sorted."""
    introns: np.ndarray
    """int64 [n, 3]: start, end, strand of each different intron, but those of tRNA and rRNA; where the strand
    is known."""
    coding: np.ndarray
    """int64 [n, 3]: the same of each different coding part that is complete, from its first to its last base."""
    structured: bool
    """Whether any gene has exons or a coding part."""
    bare: int
    """Genes and transcripts without parts that are of no named kind of RNA."""
    guessed: int
    """Transcripts with a coding part and no exon rows."""


def build_models(table: FeatureTable, places: Places) -> Models:
    """Everything that ``table`` says about the contigs of ``places``."""
    rows, nodes = table.columns(), table.nodes()
    any_cds = bool((rows.kind <= STOP).any())
    parts = [
        _build(Columns(*(column[batch] for column in rows)), nodes, places, any_cds)
        for batch in _batches(nodes.contig[rows.node])
    ]
    layers: Layers = {}
    for part in parts:
        for key, spans in part.layers.items():
            layers.setdefault(key, []).extend(spans)
    return Models(
        layers=layers,
        contigs=np.concatenate([part.contigs for part in parts]),
        introns=np.concatenate([part.introns for part in parts]),
        coding=np.concatenate([part.coding for part in parts]),
        structured=any(part.structured for part in parts),
        bare=sum(part.bare for part in parts),
        guessed=sum(part.guessed for part in parts),
    )


def _batches(contig: np.ndarray) -> Iterator[np.ndarray]:
    """Row numbers in batches that hold all rows of their contigs; one empty batch if there are none."""
    order = np.argsort(contig, kind="stable")
    borders = np.append(np.flatnonzero(np.diff(contig[order])) + 1, len(order))
    first = 0
    while first < len(order) or first == 0:
        last = int(borders[min(int(np.searchsorted(borders, first + _BATCH)), len(borders) - 1)])
        yield order[first:last]
        first = max(last, 1)


def _build(rows: Columns, nodes: Nodes, places: Places, any_cds: bool) -> Models:
    """The models of some contigs; ``any_cds``: the file mentions a CDS somewhere."""
    painter = Collector(rows, nodes, places)
    for kind in np.unique(rows.kind[rows.kind >= INTERVAL]).tolist():
        painter.add(kind - INTERVAL, rows.kind == kind)
    is_part, is_coding = rows.kind <= EXON_ROW, rows.kind <= STOP
    is_span, is_exon = rows.kind == SPAN, rows.kind == EXON_ROW
    has_part, own_cds = _marked(rows.node[is_part], nodes), _marked(rows.node[is_coding], nodes)
    has_child = _marked(nodes.parent[nodes.parent >= 0], nodes)
    # the coding part may hang on the gene, beside the transcript that holds the exons
    has_cds = own_cds | (own_cds[nodes.parent] & (nodes.parent >= 0))
    is_typed = nodes.flags & TYPED > 0
    is_known = is_typed | any_cds

    is_leaf = is_span & ~(has_part | has_child)[rows.node]
    in_coding = has_cds[rows.node]
    lone = (is_exon & ~in_coding) | is_leaf
    painter.add(INTRON, is_span & has_part[rows.node])
    painter.add(NCRNA, lone & is_known[rows.node])
    painter.add(EXON, lone & ~is_known[rows.node])
    painter.add(UTR, (is_exon & in_coding) | (rows.kind == UTR_ROW))

    spans, strands = Spans(rows.start, rows.end), (rows.strand, rows.run)
    parts = group(rows.start, strands, np.flatnonzero(is_part))
    coding = group(rows.start, strands, np.flatnonzero(is_coding))
    painter.add_spans(INTRON, hulls(spans, parts), parts.order[parts.first])
    without_exons = own_cds & ~has_child & ~_marked(rows.node[is_part & ~is_coding], nodes)
    guessed = painter.add_flanks(np.flatnonzero(is_span & without_exons[rows.node]), coding)
    phase = _phases(rows, is_coding)
    painter.add_coding(np.flatnonzero(is_coding), phase)
    return Models(
        layers=painter.layers,
        contigs=np.unique(painter.contig[is_part | is_leaf]),
        introns=painter.checkable(*_spliced(rows, nodes, gaps(spans, parts))),
        coding=_complete(painter, coding, phase),
        structured=bool(is_part.any()),
        bare=int(np.count_nonzero(is_leaf & ~is_typed[rows.node])),
        guessed=guessed,
    )


def _marked(numbers: np.ndarray, nodes: Nodes) -> np.ndarray:
    """bool per node: occurs in ``numbers``."""
    marks = np.zeros(len(nodes.contig), dtype=bool)
    marks[numbers] = True
    return marks


def _spliced(rows: Columns, nodes: Nodes, found: tuple[Spans, np.ndarray]) -> tuple[Spans, np.ndarray]:
    """The introns among ``found`` that the spliceosome takes out."""
    (starts, ends), after = found
    some = nodes.flags[rows.node[after]] & UNSPLICED == 0
    return Spans(starts[some], ends[some]), after[some]


def _phases(rows: Columns, is_coding: np.ndarray) -> np.ndarray:
    """int8 per row: the phase column, with what it leaves out counted on from the run's first coding row."""
    missing = is_coding & (rows.phase == NO_PHASE)
    phase = rows.phase.copy()
    if not missing.any():
        return phase
    runs = np.unique(rows.run[missing])
    chosen = np.flatnonzero(is_coding & np.isin(rows.run, runs))
    along = np.where(rows.strand < 0, -rows.end, rows.start)
    # a stop codon has a frame of its own: the CDS rows may hold it already
    order, first = group(along, (rows.kind, rows.strand, rows.run), chosen)
    length = (rows.end - rows.start)[order]
    before = np.cumsum(length) - length
    sizes = np.diff(np.append(first, len(order)))
    before -= np.repeat(before[first], sizes)
    begin = np.repeat(np.maximum(phase[order[first]], 0), sizes)
    counted = ((begin - before) % 3).astype(np.int8)
    phase[order] = np.where(phase[order] == NO_PHASE, counted, phase[order])
    return phase


def _complete(painter: Collector, coding: Groups, phase: np.ndarray) -> np.ndarray:
    """The coding parts whose first and last codon can be read, as ``Models.coding`` has them."""
    rows, nodes = painter.rows, painter.nodes
    if not len(coding.first):
        return np.zeros((0, 3), dtype=np.int64)
    left = coding.order[coding.first]
    right = coding.order[np.append(coding.first[1:], len(coding.order)) - 1]
    head = np.where(rows.strand[left] > 0, left, right)
    spans = hulls(Spans(rows.start, rows.end), coding)
    whole = (rows.run[left] == rows.node[left]) & (nodes.flags[rows.node[left]] & PARTIAL == 0)
    whole &= (phase[head] == 0) & (rows.end[right] == spans.ends)
    for edge in (left, right):
        whole &= rows.end[edge] - rows.start[edge] >= 3
    # parts on both strands are two groups of one run
    twice = np.zeros(len(left), dtype=bool)
    same = rows.run[left[1:]] == rows.run[left[:-1]]
    twice[1:] |= same
    twice[:-1] |= same
    whole &= ~twice
    return painter.checkable(Spans(spans.starts[whole], spans.ends[whole]), left[whole])
