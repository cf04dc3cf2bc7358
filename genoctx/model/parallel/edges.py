"""The last few tokens before every piece: the convolution's halo and the indexer's open pool.

Every rank gives the last W tokens of each of its pieces (fewer where a piece is shorter), so what is sent
does not depend on the length. Behind the carry's tail they make one short stream, from which every rank
reads the tokens before its own pieces, and those that leave the chunk.

Letters: B rows, W tokens of an edge at most, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from genoctx.model.parallel.pieces import Group, in_order, own_pieces


@dataclass(frozen=True)
class Edges:
    """Where the short stream is cut. ``tail`` tokens of the carry come first."""

    group: Group
    lengths: tuple[int, ...]
    """Tokens of every piece."""
    width: int
    """Most tokens an edge has."""
    tail: int
    needs: tuple[int, ...]
    """Tokens wanted before every piece, and behind the last."""
    kind: str

    @property
    def own(self) -> tuple[int, int]:
        """The pieces of this rank."""
        return own_pieces(self.group.rank, self.group.size)

    def given(self, piece: int) -> int:
        """Tokens that there are to give of a piece."""
        return min(self.lengths[piece], self.width)

    def last(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The tokens to give of this rank's pieces [B, T, C]."""
        return [x[:, x.shape[1] - self.given(p) :] for p, x in zip(self.own, pieces, strict=True)]

    def borders(self) -> list[int]:
        """Ends of the tail and of every piece's tokens in the stream."""
        return list(accumulate(map(self.given, range(len(self.lengths))), initial=self.tail))

    def wanted(self, piece: int) -> slice:
        """Tokens of the stream before a piece; behind the last for ``piece == len(lengths)``."""
        end = self.borders()[piece]
        return slice(end - self.needs[piece], end)

    def exchanged(self, parts: Sequence[Tensor], kind: str) -> list[Tensor]:
        """[B, W, C] of every piece in order, from [B, up to W, C] of this rank's."""
        one = parts[0]
        sent = one.new_zeros(len(parts), len(one), self.width, one.shape[2])
        for place, part in zip(sent, parts, strict=True):
            place[:, : part.shape[1]] = part
        return in_order([tuple(x) for x in self.group.gather(sent, kind)])


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: Edges, tail_BTC: Tensor, *own_BTC: Tensor) -> tuple[Tensor, ...]:
        ctx.edges = edges
        everything = edges.exchanged(own_BTC, edges.kind)
        stream = torch.cat((tail_BTC, *(x[:, : edges.given(p)] for p, x in enumerate(everything))), 1)
        # clones: a view would keep the stream alive in every carry
        return tuple(stream[:, edges.wanted(p)].clone() for p in (*edges.own, len(everything)))

    @staticmethod
    def backward(ctx: Any, *d_BTC: Tensor) -> tuple[Tensor | None, ...]:
        edges: Edges = ctx.edges
        *d_entering, d_leaving = d_BTC
        borders = edges.borders()
        d_stream = d_leaving.new_zeros(len(d_leaving), borders[-1], d_leaving.shape[2])
        for piece, d in enumerate(edges.exchanged(d_entering, f"{edges.kind} gradient")):
            d_stream[:, edges.wanted(piece)] += d[:, : edges.needs[piece]]
        d_stream[:, edges.wanted(len(edges.lengths))] += d_leaving
        d_own = (d_stream[:, slice(*list(pairwise(borders))[piece])] for piece in edges.own)
        return None, d_stream[:, : edges.tail], *d_own


def exchange(own_BTC: Sequence[Tensor], tail_BTC: Tensor, edges: Edges) -> tuple[list[Tensor], Tensor]:
    """(tokens before each of this rank's pieces, tokens that leave the chunk): as many as ``edges.needs``.

    ``own_BTC``: what ``edges.last`` gives; ``tail_BTC``: the carry's, alike on every rank. Differentiable
    in all; the gradient of the tail is whole on every rank.
    """
    if not edges.width:
        return list(own_BTC), tail_BTC
    *before, after = _Exchange.apply(edges, tail_BTC, *own_BTC)
    return before, after
