"""Contigs that are copies of each other: haplotypes, alternate loci, a file given twice.

Equal bases are told by digest. Nearly equal ones share most anchors of the smaller of the two, on either
strand. Pairs are found through an index of the anchors, never by trying all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genoctx.genome.anchors import Anchors, K
from genoctx.genome.manifest import Contig

SHARED = 0.6
"""Share of anchors from which two contigs are called nearly identical: with 30-mers, 98.3 % of equal bases."""

FEWEST = 12
"""Anchors that the smaller contig must have: about 50,000 bases. Shorter ones are compared by digest alone."""

_SHORTEST = K
"""Bases from which equal contigs are worth a word."""

_NEIGHBOURS = 4
"""Contigs with one anchor are paired with so many of the next: enough to find each a twin."""


@dataclass(frozen=True)
class Twins:
    """Two contigs that are nearly identical, or one inside the other."""

    first: Contig
    second: Contig
    shared: float
    """Share of the smaller one's anchors that the other has."""

    @property
    def identity(self) -> float:
        """Share of equal bases that makes so many k-mers survive, if differences are spread evenly."""
        return float(self.shared ** (1 / K))


def copies(contigs: Sequence[Contig]) -> list[tuple[Contig, ...]]:
    """Groups of contigs with the same bases, in order of their first."""
    first: dict[str, Contig] = {}
    groups: dict[str, list[Contig]] = {}
    for contig in contigs:
        if contig.length >= _SHORTEST:
            same = first.setdefault(contig.sha256, contig)
            if same is not contig:
                groups.setdefault(contig.sha256, [same]).append(contig)
    # a group is found when its second contig is there
    return sorted((tuple(group) for group in groups.values()), key=lambda group: group[0].offset)


def near_twins(contigs: Sequence[Contig], anchors: Anchors) -> list[Twins]:
    """Pairs that share at least ``SHARED`` of the anchors of one of them, in contig order; no equal ones."""
    anchors.settle()
    sizes = np.bincount(anchors.contig, minlength=len(contigs))
    enough = sizes[anchors.contig] >= FEWEST
    pairs, counts = _pairs(anchors.contig[enough].astype(np.int64), anchors.hash[enough], len(contigs))
    found = []
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        first, second = divmod(pair, len(contigs))
        share = count / int(min(sizes[first], sizes[second]))
        if share >= SHARED and contigs[first].sha256 != contigs[second].sha256:
            found.append(Twins(contigs[first], contigs[second], share))
    return found


def _pairs(contig: np.ndarray, hashes: np.ndarray, contigs: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs with an anchor in common as ``first * contigs + second``, ascending, and how many they share.

    The arrays are sorted by hash, then contig.
    """
    found = [np.zeros(0, dtype=np.int64)]
    for distance in range(1, _NEIGHBOURS + 1):
        same = hashes[distance:] == hashes[:-distance]
        found.append(contig[:-distance][same] * contigs + contig[distance:][same])
    return np.unique(np.concatenate(found), return_counts=True)
