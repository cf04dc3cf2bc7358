"""What kind of sequence each base of a window is, as the numbers of a ledger's strata."""

from __future__ import annotations

import numpy as np

from genoctx.genome.alphabet import N_CODE
from genoctx.genome.kmers import canonical_kmers
from genoctx.genome.region_classes import CLASSES
from genoctx.genome.store import GenomeStore

GC_TILE = 1024
"""Bases, aligned to the contig: a base's GC is that of its tile, whatever the windows are."""
DECILES = 10
SEEN_K = 24
"""A chance repeat of 24 bases within a million on two strands: one base in a hundred million."""

_MASK = ("mask/unmasked", "mask/soft-masked")
_GC = tuple(f"gc/{decile}" for decile in range(DECILES))
_REGIONS = tuple(f"region/{name}" for name in CLASSES)


def stratum_names(store: GenomeStore) -> tuple[str, ...]:
    """The strata of a store: soft-mask and GC, and classes of bases where it is annotated."""
    return _MASK + _GC + (_REGIONS if store.annotated else ())


def strata_of(store: GenomeStore, contig: str, start: int, end: int) -> np.ndarray:
    """Per facet and base of a window, in contig order, its place in ``stratum_names``: uint8 [facets, bases]."""
    where = (contig, start, end)
    facets = [
        store.softmask(*where).view(np.uint8),
        len(_MASK) + _gc_deciles(store, *where),
    ]
    if store.annotated:
        facets.append(len(_MASK) + len(_GC) + store.regions(*where))
    return np.stack(facets)


def _gc_deciles(store: GenomeStore, contig: str, start: int, end: int) -> np.ndarray:
    """The GC decile of the tile of each base, 0 for tiles without A, C, G or T: uint8."""
    first = start // GC_TILE * GC_TILE
    last = min(-(-end // GC_TILE) * GC_TILE, store.contig(contig).length)
    codes = store.codes(contig, first, last)
    tiles = np.arange(0, len(codes), GC_TILE)
    known = np.add.reduceat(codes < N_CODE, tiles, dtype=np.int64)
    gc = np.add.reduceat((codes == 1) | (codes == 2), tiles, dtype=np.int64)
    decile = np.minimum(DECILES * gc // np.maximum(known, 1), DECILES - 1).astype(np.uint8)
    return np.repeat(decile, GC_TILE)[start - first : end - first]


def seen_before(codes: np.ndarray, k: int = SEEN_K) -> np.ndarray:
    """Whether the ``k`` bases that end at each base of uint8 ``codes`` stand earlier, on either strand: bool.

    Earlier means: they end at an earlier base. N and other ambiguity codes match nothing.
    """
    seen = np.zeros(len(codes), dtype=bool)
    kmers, whole = canonical_kmers(codes, k)
    ends = np.flatnonzero(whole) + (k - 1)
    _, first = np.unique(kmers[whole], return_index=True)  # the index of the first of equal ones
    seen[ends] = True
    seen[ends[first]] = False
    return seen
