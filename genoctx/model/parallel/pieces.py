"""A chunk in pieces: which rank has which tokens, and what ranks can do together.

The ranks of a group hold consecutive pieces of one chunk, in the order of their ranks; pieces may be
unequal, shorter than a convolution or a pool, or empty. Two rules keep every exchange in step:

- Every rank enters every collective, also with nothing to give. Autograd runs nodes strictly in the
  reverse order of their making, and every rank makes the same ones, so this holds backwards too.
- What every rank has alike (carries, prefixes) has the whole gradient on every rank, alike; what a rank
  has alone (its tokens, its share of a loss) has its gradient there; parameters have partial gradients,
  to be summed over the ranks.

Letters: B rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """Ranks that work on one chunk. ``kind`` names what is sent, for counters and errors."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, x: Tensor, kind: str) -> Tensor:
        """[size, *x.shape]: the tensors of all ranks, which agree on the shape."""
        ...

    def gather_rows(self, x: Tensor, counts: Sequence[int], kind: str) -> Tensor:
        """[sum of counts, ...]: the rows of all ranks in order; rank r has ``counts[r]`` of them."""
        ...

    def sum_rows(self, x: Tensor, counts: Sequence[int], kind: str) -> Tensor:
        """[counts[rank], ...]: this rank's rows of the sum over ranks of ``x`` [sum of counts, ...]."""
        ...


@dataclass(frozen=True)
class Pieces:
    """One chunk's pieces, alike on every rank."""

    group: Group
    lengths: tuple[int, ...]
    """Tokens of every rank, left padding included."""
    skips: tuple[tuple[int, ...], ...]
    """Per rank and row, how many of them are left padding."""

    def real(self, row: int) -> RowPieces:
        """The pieces of one row of the batch, without its padding."""
        counts = (n - skip[row] for n, skip in zip(self.lengths, self.skips, strict=True))
        return RowPieces(self.group, tuple(counts))


@dataclass(frozen=True)
class RowPieces:
    """Pieces of one sequence: its real tokens, or whatever else its ranks have some rows of."""

    group: Group
    counts: tuple[int, ...]

    @property
    def before(self) -> int:
        """Rows of the ranks before this one."""
        return sum(self.counts[: self.group.rank])

    def pools(self, first: int, pool: int) -> RowPieces:
        """The pools that every rank's tokens complete, where the first token stands at ``first``."""
        ends = [first // pool]
        for count in self.counts:
            first += count
            ends.append(first // pool)
        return RowPieces(self.group, tuple(b - a for a, b in pairwise(ends)))
