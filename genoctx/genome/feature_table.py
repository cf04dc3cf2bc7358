"""The features of one annotation file as flat arrays: 30 bytes each, however long their lines were."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

CDS, STOP, UTR_ROW, EXON_ROW, SPAN, INTERVAL = range(6)
"""Kinds of rows. The first four are parts of a transcript, SPAN is the whole of a gene or transcript; an
interval that is painted as it stands has the kind INTERVAL + its class."""

NO_PHASE = -1
TYPED, PARTIAL, UNSPLICED = 1, 2, 4
"""Flags of a node: its own row says that it is a kind of RNA; its coding part is incomplete; its introns are
not those of the spliceosome and have other ends."""


class Columns(NamedTuple):
    """The rows as numpy arrays, without copies; all of one length."""

    kind: np.ndarray
    """uint8."""
    start: np.ndarray
    """int64, 0-based, in the coordinates of ``codes.u8``. May lie outside of the contig, see ``Places``."""
    end: np.ndarray
    """int64, exclusive."""
    strand: np.ndarray
    """int8: 1, -1, or 0 where it is not known."""
    phase: np.ndarray
    """int8: bases before the first whole codon, in reading direction; NO_PHASE where it is not known."""
    node: np.ndarray
    """int32: the gene or transcript a row is, or is a part of."""
    run: np.ndarray
    """int32: rows of one run lie on one molecule, so that an intron fills the gap between them."""


class Nodes(NamedTuple):
    """Genes and transcripts; all arrays of one length."""

    contig: np.ndarray
    """int32: index of the contig."""
    parent: np.ndarray
    """int32: the gene of a transcript, -1 for none."""
    flags: np.ndarray
    """uint8."""


class FeatureTable:
    """Collects the rows of one file in any order."""

    def __init__(self) -> None:
        self._kind, self._strand, self._phase = array("B"), array("b"), array("b")
        self._start, self._end = array("q"), array("q")
        self._node, self._run = array("i"), array("i")
        self._contig, self._parent, self._flags = array("i"), array("i"), array("B")
        self._known: dict[int, dict[str, int]] = {}
        self._ground: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._kind)

    def add(self, kind: int, start: int, end: int, strand: int, phase: int, node: int, run: int = -1) -> None:
        """A row; without ``run`` it lies on one molecule with the other rows of its node."""
        self._kind.append(kind)
        self._start.append(start)
        self._end.append(end)
        self._strand.append(strand)
        self._phase.append(phase)
        self._node.append(node)
        self._run.append(node if run < 0 else run)

    def node(self, contig: int, key: str) -> int:
        """The gene or transcript that ``contig`` knows as ``key``, which need not have come yet."""
        known = self._known.get(contig)
        if known is None:
            known = self._known[contig] = {}
        number = known.get(key)
        if number is None:
            number = known[key] = self.new_node(contig)
        return number

    def ground(self, contig: int) -> int:
        """The node of all intervals on ``contig`` that belong to no gene."""
        number = self._ground.get(contig)
        if number is None:
            number = self._ground[contig] = self.new_node(contig)
        return number

    def new_node(self, contig: int) -> int:
        """A node, or a run, that nothing else refers to."""
        self._contig.append(contig)
        self._parent.append(-1)
        self._flags.append(0)
        return len(self._contig) - 1

    def set_parent(self, node: int, parent: int) -> None:
        """``node`` is a transcript of the gene ``parent``."""
        self._parent[node] = parent

    def flag(self, node: int, flag: int) -> None:
        """Set TYPED, PARTIAL or UNSPLICED."""
        self._flags[node] |= flag

    def make_intervals(self, number: int) -> None:
        """Make every row an interval of the class ``number``, of no gene."""
        self._kind = array("B", [INTERVAL + number]) * len(self._kind)

    def columns(self) -> Columns:
        """All rows so far."""
        parts = (self._kind, self._start, self._end, self._strand, self._phase, self._node, self._run)
        return Columns(*map(np.asarray, parts))

    def nodes(self) -> Nodes:
        """All nodes so far."""
        return Nodes(*map(np.asarray, (self._contig, self._parent, self._flags)))
