"""Statistics of many pieces at once: a million short contigs must not cost a million rounds of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genoctx.genome.alphabet import LETTERS, N_CODE, count_codes
from genoctx.genome.piece import Piece


@dataclass(frozen=True)
class Batch:
    """Consecutive non-empty pieces, joined. Entry i of what the methods return belongs to piece i."""

    codes: np.ndarray
    """uint8 per base."""
    lower: np.ndarray
    """bool per base."""
    starts: np.ndarray
    """int64 per piece: where it begins in ``codes``."""
    fresh: np.ndarray
    """bool per piece: whether it begins its contig."""

    @classmethod
    def join(cls, pieces: Sequence[Piece]) -> Batch:
        """The batch of ``pieces``; a single one is not copied."""
        sizes = [piece.codes.size for piece in pieces]
        starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
        fresh = np.array([piece.start == 0 for piece in pieces])
        if len(pieces) == 1:
            return cls(pieces[0].codes, pieces[0].lower, starts, fresh)
        codes = np.concatenate([piece.codes for piece in pieces])
        return cls(codes, np.concatenate([piece.lower for piece in pieces]), starts, fresh)

    @property
    def begins(self) -> np.ndarray:
        """int64 per contig that begins here: where in ``codes``."""
        return self.starts[self.fresh]

    def counts(self) -> np.ndarray:
        """How often each code occurs: int64 [pieces, 15]."""
        if self.starts.size == 1:
            return count_codes(self.codes)[np.newaxis]
        counts = np.zeros((len(LETTERS), self.starts.size), dtype=np.int64)
        for code in range(int(self.codes.max()) + 1):
            counts[code] = self._sums(self.codes == code)
        return counts.T

    def lower_counts(self) -> np.ndarray:
        """Bases in lower case: int64."""
        return self._sums(self.lower)

    def n_runs(self, after_n: bool) -> np.ndarray:
        """Stretches of N that begin in each piece: int64. ``after_n``: the base before the batch is N."""
        is_n = self.codes == N_CODE
        begin = is_n.copy()
        np.greater(is_n[1:], is_n[:-1], out=begin[1:])
        begin[0] &= not after_n
        begin[self.begins] = is_n[self.begins]
        return self._sums(begin)

    def _sums(self, flags: np.ndarray) -> np.ndarray:
        if self.starts.size == 1:
            return np.array([np.count_nonzero(flags)])
        return np.add.reduceat(flags, self.starts, dtype=np.int64)
