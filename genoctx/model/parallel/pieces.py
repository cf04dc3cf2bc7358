"""A chunk in pieces: which rank has which tokens, and what ranks can do together.

A chunk is cut into two pieces for every rank. Rank r of n has piece r and piece 2n - 1 - r: a query near
the end of a chunk has more to look at than one near its beginning, and with one piece of either side every
rank's indexer has as much to score. A rank's tokens are its two pieces, one after the other. Pieces may be
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
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

PARTS = 2
"""Pieces of every rank."""


class Group(Protocol):
    """Ranks that work on one chunk. ``kind`` names what is sent, for counters and errors."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, x: Tensor, kind: str) -> Tensor:
        """[size, *x.shape]: the tensors of all ranks, which agree on the shape."""
        ...

    def sum_own(self, x: Tensor, kind: str) -> Tensor:
        """This rank's entry of the sum over ranks of ``x`` [size, ...]."""
        ...


def own_pieces(rank: int, size: int) -> tuple[int, int]:
    """The pieces that a rank has, of ``PARTS * size``."""
    return rank, PARTS * size - 1 - rank


def in_order(by_rank: Sequence[Sequence[T]]) -> list[T]:
    """Per rank and part, as ranks give them, in the order of the pieces."""
    return [first for first, _ in by_rank] + [second for _, second in reversed(by_rank)]


@dataclass(frozen=True)
class Pieces:
    """One chunk's pieces, alike on every rank."""

    group: Group
    lengths: tuple[int, ...]
    """Tokens of every piece, left padding included."""
    skips: tuple[tuple[int, ...], ...]
    """Per piece and row, how many of them are left padding."""

    @property
    def own(self) -> tuple[int, int]:
        """The pieces of this rank."""
        return own_pieces(self.group.rank, self.group.size)

    def split(self, x_BT: Tensor) -> tuple[Tensor, ...]:
        """This rank's tokens [B, T, ...], piece by piece, each contiguous."""
        # as kernels need them: else they would copy them, and both would be kept for the backward pass
        return tuple(x.contiguous() for x in x_BT.split([self.lengths[piece] for piece in self.own], 1))

    def real(self, row: int) -> RowPieces:
        """The pieces of one row of the batch, without its padding."""
        counts = (n - skip[row] for n, skip in zip(self.lengths, self.skips, strict=True))
        return RowPieces(self.group, tuple(counts))


@dataclass(frozen=True)
class RowPieces:
    """Pieces of one sequence: its real tokens, or whatever else its ranks have some rows of."""

    group: Group
    counts: tuple[int, ...]
    """Rows of every piece."""

    @property
    def own(self) -> list[tuple[int, int]]:
        """(rows of the pieces before it, its rows) of each piece of this rank."""
        starts = list(accumulate(self.counts, initial=0))
        return [(starts[p], self.counts[p]) for p in own_pieces(self.group.rank, self.group.size)]

    def pools(self, first: int, pool: int) -> RowPieces:
        """The pools that every piece's tokens complete, where the first token stands at ``first``."""
        ends = [(first + count) // pool for count in accumulate(self.counts, initial=0)]
        return RowPieces(self.group, tuple(b - a for a, b in pairwise(ends)))

    def gather(self, own_T: Tensor, kind: str) -> Tensor:
        """[sum of counts, ...]: all rows in order, from every rank's own, piece after piece."""
        places, most = self._places()
        if not most:
            return own_T
        padded = own_T.new_zeros(most, *own_T.shape[1:])
        padded[: len(own_T)] = own_T
        found = self.group.gather(padded, kind)
        return torch.cat([found[rank, rows] for rank, rows in places])

    def sum_own(self, x_T: Tensor, kind: str) -> Tensor:
        """This rank's rows, piece after piece, of the sum over ranks of ``x_T`` [sum of counts, ...]."""
        places, most = self._places()
        if not most:
            return x_T
        padded = x_T.new_zeros(self.group.size, most, *x_T.shape[1:])
        for (rank, rows), part in zip(places, x_T.split(list(self.counts)), strict=True):
            padded[rank, rows] = part
        return self.group.sum_own(padded, kind)[: sum(count for _, count in self.own)]

    def _places(self) -> tuple[list[tuple[int, slice]], int]:
        """(rank, which of its rows) of every piece, and the most rows that a rank has."""
        size = self.group.size
        pairs = [tuple(self.counts[p] for p in own_pieces(rank, size)) for rank in range(size)]
        by_rank = [((r, slice(0, a)), (r, slice(a, a + b))) for r, (a, b) in enumerate(pairs)]
        return in_order(by_rank), max(map(sum, pairs))
