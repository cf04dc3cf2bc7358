"""The last few tokens before every piece: the convolution's halo and the indexer's open pool.

Every rank gives the last W tokens of its piece (fewer where the piece is shorter), so what is sent does
not depend on the length. Behind the carry's tail they make one short stream, from which every rank reads
the tokens before its own piece, and those that leave the chunk.

Letters: B rows, W tokens of an edge at most, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from genoctx.model.parallel.pieces import Group


@dataclass(frozen=True)
class Edges:
    """Where the short stream is cut. ``tail`` tokens of the carry come first."""

    group: Group
    lengths: tuple[int, ...]
    """Tokens of every rank."""
    width: int
    """Most tokens an edge has."""
    tail: int
    needs: tuple[int, ...]
    """Tokens wanted before every rank's piece, and behind the last."""
    kind: str

    def given(self, rank: int) -> int:
        """Tokens that a rank has to give."""
        return min(self.lengths[rank], self.width)

    def borders(self) -> list[int]:
        """Ends of the tail and of every rank's tokens in the stream."""
        found = [self.tail]
        for rank in range(self.group.size):
            found.append(found[-1] + self.given(rank))
        return found

    def wanted(self, rank: int) -> slice:
        """Tokens of the stream before a rank's piece; behind the last for ``rank == size``."""
        end = self.borders()[rank]
        return slice(end - self.needs[rank], end)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own_BTC: Tensor, tail_BTC: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        ctx.edges, group = edges, edges.group
        sent = own_BTC.new_zeros(len(own_BTC), edges.width, own_BTC.shape[2])
        count = edges.given(group.rank)
        sent[:, :count] = own_BTC
        everyone = group.gather(sent, edges.kind)
        stream = torch.cat((tail_BTC, *(x[:, : edges.given(r)] for r, x in enumerate(everyone))), 1)
        # clones: a view would keep the stream alive in every carry
        return stream[:, edges.wanted(group.rank)].clone(), stream[:, edges.wanted(group.size)].clone()

    @staticmethod
    def backward(ctx: Any, d_entering: Tensor, d_leaving: Tensor) -> tuple[Tensor, Tensor, None]:
        edges, group = ctx.edges, ctx.edges.group
        sent = d_entering.new_zeros(len(d_entering), edges.width, d_entering.shape[2])
        sent[:, : d_entering.shape[1]] = d_entering
        borders = edges.borders()
        d_stream = d_entering.new_zeros(len(d_entering), borders[-1], d_entering.shape[2])
        for rank, d in enumerate(group.gather(sent, f"{edges.kind} gradient")):
            d_stream[:, edges.wanted(rank)] += d[:, : edges.needs[rank]]
        d_stream[:, edges.wanted(group.size)] += d_leaving
        start, end = list(pairwise(borders))[group.rank]
        return d_stream[:, start:end], d_stream[:, : edges.tail], None


def exchange(own_BTC: Tensor, tail_BTC: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
    """(tokens before this rank's piece, tokens that leave the chunk): ``edges.needs`` says how many.

    ``own_BTC``: the last ``edges.given(rank)`` tokens of the piece; ``tail_BTC``: the carry's, alike on
    every rank. Differentiable in both; the gradient of the tail is whole on every rank.
    """
    if not edges.width:
        return own_BTC, tail_BTC
    before, after = _Exchange.apply(own_BTC, tail_BTC, edges)
    return before, after
