"""What is painted: for each class the intervals that have it, and for coding bases only every third position."""

from __future__ import annotations

import numpy as np

from genoctx.genome.feature_table import Columns, Nodes
from genoctx.genome.places import Places
from genoctx.genome.region_classes import CDS1, UTR
from genoctx.genome.spans import Groups, Spans, hulls, union

SOLID = -1

Layers = dict[tuple[int, int], list[Spans]]
"""Spans by class and residue: r, where only positions p with p % 3 == r are painted, or SOLID."""


class Collector:
    """Clips intervals to their contigs and sorts them into layers."""

    def __init__(self, rows: Columns, nodes: Nodes, places: Places) -> None:
        self.rows, self.nodes = rows, nodes
        self.contig = nodes.contig[rows.node]
        """int32 per row."""
        self.low, self.high = places.starts, places.ends
        self.layers: Layers = {}

    def add(self, kind: int, marks: np.ndarray) -> None:
        """The rows that ``marks`` (bool per row) chooses, as they stand."""
        chosen = np.flatnonzero(marks)
        self.add_spans(kind, Spans(self.rows.start[chosen], self.rows.end[chosen]), chosen)

    def add_spans(self, kind: int, spans: Spans, rows: np.ndarray, residue: int = SOLID) -> None:
        """Spans, each on the contig of the row beside it."""
        contig = self.contig[rows]
        starts, ends = np.maximum(spans.starts, self.low[contig]), np.minimum(spans.ends, self.high[contig])
        merged = union([Spans(starts, ends)])
        if len(merged):
            self.layers.setdefault((kind, residue), []).append(merged)

    def add_coding(self, chosen: np.ndarray, phase: np.ndarray) -> None:
        """Coding rows as three classes, by the place of each base in its codon."""
        rows = self.rows
        strand = rows.strand[chosen].astype(np.int64)
        # a position where a codon begins, seen along the strand
        begin = np.where(strand > 0, rows.start[chosen] + phase[chosen], rows.end[chosen] - 1 - phase[chosen])
        for place in range(3):
            residues = (begin + place * strand) % 3
            for residue in range(3):
                some = chosen[residues == residue]
                self.add_spans(CDS1 - place, Spans(rows.start[some], rows.end[some]), some, residue)

    def add_flanks(self, chosen: np.ndarray, coding: Groups) -> int:
        """UTR before and behind the ``coding`` parts of the SPAN rows ``chosen``; how many rows have some."""
        rows, far = self.rows, np.iinfo(np.int64).max
        parts = hulls(Spans(rows.start, rows.end), coding)
        run = rows.run[coding.order[coding.first]]
        first, last = np.full(len(self.nodes.contig), far), np.full(len(self.nodes.contig), -far)
        np.minimum.at(first, run, parts.starts)
        np.maximum.at(last, run, parts.ends)
        chosen = chosen[last[rows.run[chosen]] > -far]
        starts, ends, own = rows.start[chosen], rows.end[chosen], rows.run[chosen]
        self.add_spans(UTR, Spans(starts, np.minimum(ends, first[own])), chosen)
        self.add_spans(UTR, Spans(np.maximum(starts, last[own]), ends), chosen)
        return int(np.count_nonzero((starts < first[own]) | (ends > last[own])))

    def checkable(self, spans: Spans, rows: np.ndarray) -> np.ndarray:
        """int64 [n, 3]: the different spans that lie within their contigs and whose strand is known."""
        contig, strand = self.contig[rows], self.rows.strand[rows]
        inside = (spans.starts >= self.low[contig]) & (spans.ends <= self.high[contig]) & (strand != 0)
        columns = np.stack(
            [spans.starts[inside], spans.ends[inside], strand[inside].astype(np.int64)], axis=1
        )
        return np.unique(columns, axis=0)
