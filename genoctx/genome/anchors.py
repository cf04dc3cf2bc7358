"""A sample of a genome's k-mers by content: copies of a sequence give the same sample, wherever they lie.

An anchor is the k-mer around each occurrence of one short word that is its own reverse complement. So
both strands have the same anchors, an insertion moves them along, and finding the word is all that is
done for every base.
"""

from __future__ import annotations

import numpy as np

from genoctx.genome.alphabet import LETTERS, N_CODE
from genoctx.genome.kmers import mix

K = 30
_WORD = b"TGATCA"
"""No CpG, which vertebrates lose; two G or C in six, so that it is about as frequent at any GC content."""
_BEFORE = (K - len(_WORD)) // 2

_CODES = bytes(map(LETTERS.index, _WORD))
_CORE = np.frombuffer(_CODES[1:5], dtype="<u4")[0]

_STEPS = np.arange(K)
_PLACES = np.uint64(4) ** np.arange(K, dtype=np.uint64)

LIMIT = 1 << 19
"""Anchors that are kept. Above, every second one is forgotten, by its hash: 3 Gbp keep one in 8,000 bases."""


class Anchors:
    """Anchors of contigs that come one after the other, in flat memory."""

    def __init__(self) -> None:
        self.contig = np.zeros(0, dtype=np.int32)
        """Index of the contig of each anchor."""
        self.hash = np.zeros(0, dtype=np.uint64)
        """What the anchor is: equal for equal k-mers of either strand."""
        self._new: list[tuple[np.ndarray, np.ndarray]] = []
        self._held = 0
        self._below = np.uint64(2**64 - 1)
        """The greatest hash that is kept."""
        self._contigs = 0
        self._tail = np.zeros(0, dtype=np.uint8)
        """The last bases of the last contig, less than an anchor's."""

    def add(self, codes: np.ndarray, begins: np.ndarray) -> None:
        """More bases: uint8 ``codes``. Contigs begin at ``codes[begins]``; what is before belongs to the
        last one."""
        first = int(begins[0]) if begins.size else codes.size
        if first:
            self._add_seam(codes[: min(first, K - 1)])
        at = find_word(codes) - _BEFORE
        at = at[(at >= 0) & (at + K <= codes.size)]
        owner = np.searchsorted(begins, at, side="right")
        inside = owner == np.searchsorted(begins, at + (K - 1), side="right")
        self._keep(codes, at[inside], owner[inside] + (self._contigs - 1))
        self._contigs += begins.size
        last = codes[int(begins[-1]) :] if begins.size else codes
        if not begins.size and last.size < K - 1:
            last = np.concatenate([self._tail, last])
        self._tail = last[max(0, last.size - (K - 1)) :].copy()

    def merge(self, other: Anchors) -> None:
        """The contigs of ``other`` follow."""
        other.settle()
        self._new.append((other.contig + np.int32(self._contigs), other.hash))
        self._held += other.hash.size
        self._below = min(self._below, other._below)
        self._contigs += other._contigs
        self._tail = self._tail[:0]
        self.settle()

    def settle(self) -> None:
        """Make ``contig`` and ``hash`` final for what came so far: by hash, then contig, each pair once."""
        contig = np.concatenate([self.contig, *(new for new, _ in self._new)])
        hashes = np.concatenate([self.hash, *(new for _, new in self._new)])
        self._new, self._held = [], 0
        kept = hashes <= self._below
        contig, hashes = contig[kept], hashes[kept]
        order = np.lexsort((contig, hashes))
        contig, hashes = contig[order], hashes[order]
        fresh = np.ones(hashes.size, dtype=bool)
        fresh[1:] = (hashes[1:] != hashes[:-1]) | (contig[1:] != contig[:-1])
        contig, hashes = contig[fresh], hashes[fresh]
        # the limit depends on what came, not on when it came: files read in parallel give the same
        while hashes.size > LIMIT:
            self._below >>= np.uint64(1)
            size = int(np.searchsorted(hashes, self._below, side="right"))
            contig, hashes = contig[:size], hashes[:size]
        self.contig, self.hash = contig, hashes

    def _add_seam(self, head: np.ndarray) -> None:
        """Anchors that began before ``head``, the next bases of the last contig."""
        codes = np.concatenate([self._tail, head])
        at = find_word(codes) - _BEFORE
        at = at[(at >= 0) & (at + K <= codes.size)]
        self._keep(codes, at, np.full(at.size, self._contigs - 1))

    def _keep(self, codes: np.ndarray, at: np.ndarray, contig: np.ndarray) -> None:
        if not at.size:
            return
        windows = codes[at[:, np.newaxis] + _STEPS]
        plain = windows.max(axis=1) < N_CODE
        hashes = mix(_numbers(windows[plain]))
        kept = hashes <= self._below
        self._new.append((contig[plain][kept].astype(np.int32), hashes[kept]))
        self._held += int(np.count_nonzero(kept))
        if self._held > LIMIT:
            self.settle()


def _numbers(kmers: np.ndarray) -> np.ndarray:
    """uint64 per row of codes below 4: base-4 digits of the strand that gives the smaller number."""
    digits = kmers.astype(np.uint64)
    complement = np.uint64(4**K - 1) - digits @ _PLACES
    return np.minimum(digits @ _PLACES[::-1], complement)


def find_word(codes: np.ndarray) -> np.ndarray:
    """Where the word begins in uint8 ``codes``: int64, in no order."""
    # four bytes are compared at a time, at each of the four alignments: that is the pass over all bases
    width = -(-codes.size // 32) * 8
    hits = np.empty((4, width), dtype=bool)
    hits[:, max(0, codes.size - 3) // 4 :] = False  # where the words of some alignment end
    for shift in range(min(4, codes.size // 4 and 4)):
        words = np.frombuffer(codes, dtype="<u4", count=(codes.size - shift) // 4, offset=shift)
        np.equal(words, _CORE, out=hits[shift, : words.size])
    # most eights of answers are all False: they are told at once
    eights = hits.reshape(-1).view(np.uint64)
    some = np.flatnonzero(eights != 0)
    true = np.flatnonzero(eights[some].view(bool))
    shift, word = np.divmod(8 * some[true >> 3] + (true & 7), width)
    at = 4 * word + shift - 1
    at = at[(at >= 0) & (at + len(_WORD) <= codes.size)]
    return at[(codes[at] == _CODES[0]) & (codes[at + 5] == _CODES[5])]
