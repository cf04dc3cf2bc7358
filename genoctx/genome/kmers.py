"""Canonical k-mers of base codes as 64-bit numbers: vectorised, two bits a base, in flat memory.

A k-mer and its reverse complement are one thing here: the smaller of the two numbers stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from genoctx.errors import UsageError
from genoctx.genome.alphabet import N_CODE

if TYPE_CHECKING:
    from genoctx.genome.store import GenomeStore

K_MIN, K_MAX = 11, 31
"""Below 11, chance alone finds most k-mers in any genome; above 31 they do not fit into 62 bits."""

PIECE = 1 << 17
"""Bases per piece: its uint64 arrays (1 MiB each) stay in a core's own cache."""

# the finaliser of splitmix64 (Steele, Lea and Flood 2014); fixed, since which k-mers a sample holds
# depends on it. Adding the first constant keeps poly-A, the number 0, from becoming the hash 0.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST = np.uint64(31)

Region = tuple[str, int, int]
"""Contig, start, end: 0-based and half-open."""


def check_k(k: int) -> None:
    """UsageError unless k-mers of this length are supported."""
    if not K_MIN <= k <= K_MAX:
        raise UsageError(f"k-mers of {k} bases are not supported", f"k lies between {K_MIN} and {K_MAX}")


def canonical_kmers(codes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k-mers of uint8 ``codes``: numbers, uint64 [n - k + 1], and which of them count, bool.

    Entry i belongs to bases ``i..i+k-1``: A C G T are the digits 0 1 2 3, the first base the highest one,
    and the number is the smaller of both strands'. It counts if all its letters are A, C, G or T.
    ``k`` from 11 to 31; fewer than k codes give nothing. Raises UsageError for another k.
    """
    check_k(k)
    if codes.size < k:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=bool)
    forward = codes & np.uint8(3)
    backward = forward ^ np.uint8(3)
    other = codes >= N_CODE
    width = 1
    while width < k:
        # a k-mer is two shorter ones side by side, at the end overlapping: 31 = 16 + 16 - 1
        step = min(width, k - width)
        forward = _join(forward[:-step], forward[step:], width, step)
        backward = _join(backward[step:], backward[:-step], width, step)
        other = other[:-step] | other[step:]
        width += step
    return np.minimum(forward, backward, out=forward).astype(np.uint64, copy=False), ~other


def _join(high: np.ndarray, low: np.ndarray, width: int, step: int) -> np.ndarray:
    """``high`` moved up by ``step`` bases over ``low``, in the smallest type that holds both."""
    bits = 2 * (width + step)
    kind = next(t for t in (np.uint8, np.uint16, np.uint32, np.uint64) if bits <= 8 * np.dtype(t).itemsize)
    joined = np.left_shift(high, 2 * step, dtype=kind)
    return np.bitwise_or(joined, low, out=joined)


def mix(numbers: np.ndarray) -> np.ndarray:
    """A fixed one-to-one 64-bit hash of uint64 ``numbers``, in place; returns them."""
    shifted = np.empty_like(numbers)
    numbers += _GAMMA
    for bits, factor in _ROUNDS:
        numbers ^= np.right_shift(numbers, bits, out=shifted)
        numbers *= factor
    numbers ^= np.right_shift(numbers, _LAST, out=shifted)
    return numbers


@dataclass(frozen=True)
class Piece:
    """A run of codes in which no k-mer spans two places that are not neighbours."""

    codes: np.ndarray
    """uint8; valid until the next piece is asked for."""
    bases: int
    """Bases read for the first time."""
    starts: np.ndarray
    """int64, ascending: where in ``codes`` a stretch begins."""
    origins: np.ndarray
    """int64: where in the store (``Contig.offset`` + position) each stretch begins."""

    def places(self, at: np.ndarray) -> np.ndarray:
        """Where in the store the bases at ``codes[at]`` lie: int64."""
        stretch = np.searchsorted(self.starts, at, side="right") - 1
        return at + (self.origins - self.starts)[stretch]


def read_pieces(store: GenomeStore, regions: Sequence[Region], k: int, size: int = PIECE) -> Iterator[Piece]:
    """The codes of ``regions`` in pieces of at most ``size``, each k-mer of each region in just one.

    Long regions are cut with k - 1 bases of overlap; short ones share a piece, an N between them.
    """
    buffer = np.empty(max(size, 2 * k), dtype=np.uint8)
    stretches: list[tuple[int, int]] = []
    used = fresh = 0
    for contig, start, end in regions:
        offset = store.contig(contig).offset
        at, seen = start, start
        while end - at >= k:
            if len(buffer) - used < k:
                yield _piece(buffer[:used], fresh, stretches)
                stretches, used, fresh = [], 0, 0
            n = min(end - at, len(buffer) - used)
            buffer[used : used + n] = store.codes(contig, at, at + n)
            stretches.append((used, offset + at))
            fresh += at + n - seen
            used, seen, at = used + n, at + n, at + n - (k - 1)
            if used < len(buffer):
                buffer[used] = N_CODE
                used += 1
        fresh += end - seen
    if used or fresh:
        yield _piece(buffer[:used], fresh, stretches)


def _piece(codes: np.ndarray, bases: int, stretches: list[tuple[int, int]]) -> Piece:
    table = np.array(stretches, dtype=np.int64).reshape(-1, 2)
    return Piece(codes, bases, table[:, 0], table[:, 1])
