"""Layers of intervals to ``regions.u8``, tile by tile: memory does not grow with the genome."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genoctx.genome.layers import SOLID, Layers
from genoctx.genome.outfile import OutFile
from genoctx.genome.places import Places
from genoctx.genome.region_classes import CLASSES, UNANNOTATED
from genoctx.genome.spans import Spans, union

REGIONS = "regions.u8"

_TILE = 1 << 20
_FEW = 64  # contigs in a tile up to which counting slices is faster than one pass of reduceat


class _Layer(NamedTuple):
    number: int
    residue: int
    spans: Spans
    """Sorted and disjoint, so both their starts and their ends rise."""


def paint(folder: Path, places: Places, layers: Layers) -> tuple[np.ndarray, str]:
    """Write ``regions.u8`` to ``folder`` durably: at each base the greatest class of all layers there.

    Returns how many bases of each contig have each class, int64 [contigs, classes], and the file's sha256.
    """
    ordered = [_Layer(*key, union(layers[key])) for key in sorted(layers)]
    total = int(places.ends[-1])
    counts = np.zeros((len(places.names), len(CLASSES)), dtype=np.int64)
    sha = hashlib.sha256()
    present = sorted({UNANNOTATED, *(layer.number for layer in ordered)})
    # one tile for all: fresh memory would cost more than the work
    buffer, flags = np.empty(min(_TILE, total), dtype=np.uint8), np.empty(min(_TILE, total), dtype=bool)
    with OutFile(folder / REGIONS) as file:
        for first in range(0, total, _TILE):
            tile = buffer[: total - first]
            tile[:] = UNANNOTATED
            for layer in ordered:
                _paint_tile(tile, first, layer)
            for number in present:
                here = np.equal(tile, number, out=flags[: len(tile)])
                _count(here, first, places, counts[:, number])
            file.write(tile.data)
            sha.update(tile.data)
        file.finish()
    return counts, sha.hexdigest()


def _paint_tile(tile: np.ndarray, first: int, layer: _Layer) -> None:
    number, residue, (starts, ends) = layer
    some = slice(np.searchsorted(ends, first, "right"), np.searchsorted(starts, first + len(tile), "left"))
    left = np.maximum(starts[some], first)
    step = 1
    if residue != SOLID:
        left = left + (residue - left) % 3
        step = 3
    right = np.minimum(ends[some] - first, len(tile))
    for start, end in zip((left - first).tolist(), right.tolist(), strict=True):
        tile[start:end:step] = number


def _count(here: np.ndarray, first: int, places: Places, counts: np.ndarray) -> None:
    """Add the bases of a tile that are marked in ``here`` to the ``counts`` of the contigs it holds."""
    low = int(np.searchsorted(places.ends, first, "right"))
    high = int(np.searchsorted(places.starts, first + len(here), "left"))
    edges = np.maximum(places.starts[low:high] - first, 0)
    if high - low > _FEW:
        counts[low:high] += np.add.reduceat(here, edges, dtype=np.int64)
    else:
        for contig, part in enumerate(np.split(here, edges[1:]), low):
            counts[contig] += np.count_nonzero(part)
