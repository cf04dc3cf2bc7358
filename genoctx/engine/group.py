"""The ranks of a context-parallel group, over torch.distributed, with counters of every byte.

How to use it (the launcher, FSDP and data parallelism live elsewhere)::

    group = TorchGroup(mesh.cp_group)             # any ProcessGroup: a DeviceMesh dimension's
    losses = train_window(model, batch, limits, weights, per, on_chunk, group=group)
    Engine(model, chunk, coefficients, group)     # train_step and score do the same

Every rank of the group gets the same whole batch (tokens are 8 bytes each) and the same chunk limits, and
walks them at the same time. Denominators are those of the whole batch, losses and parameter gradients are
this rank's share: sum both over the ranks of the group. ``on_chunk`` counts this rank's tokens.
``shares`` cuts chunks unevenly: ``TorchGroup(pg, shares=(2, 1))``; by default ranks differ by a token.
Timeouts are the process group's; a collective that fails raises GenoctxError and names what it was for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch.distributed as dist
from torch import Tensor

from genoctx.engine.batch import Batch, joined
from genoctx.errors import GenoctxError
from genoctx.model.parallel.pieces import Pieces, in_order, own_pieces

# renamed in torch 2.13, which warns about the older names
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass
class Sent:
    """What one kind of exchange cost this rank."""

    calls: int = 0
    given: int = 0
    """Bytes of this rank that others get, counted once however many get them; padding included."""
    received: int = 0
    """Bytes of others that arrive here."""


class TorchGroup:
    """A :class:`~genoctx.model.parallel.pieces.Group` over a torch.distributed process group."""

    def __init__(self, process_group: dist.ProcessGroup, shares: Sequence[float] | None = None) -> None:
        """``shares``: how much of a chunk every rank gets, relative to each other; None for even pieces."""
        self.process_group = process_group
        self._rank, self._size = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.shares = tuple(shares) if shares is not None else (1.0,) * self._size
        if len(self.shares) != self._size or min(self.shares) < 0 or not sum(self.shares):
            raise ValueError(f"shares {self.shares} for {self._size} ranks")
        self.sent: dict[str, Sent] = {}

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def cuts(self, start: int, end: int) -> list[tuple[int, int]]:
        """The pieces of the chunk ``start``..``end`` - 1, in order; some may be empty."""
        total = sum(self.shares)
        edges = [round((end - start) * (share / total)) for share in accumulate(self.shares, initial=0.0)]
        counts = [b - a for a, b in pairwise(edges)]
        lengths = in_order([((count + 1) // 2, count // 2) for count in counts])
        return list(pairwise(accumulate(lengths, initial=start)))

    def own_cuts(self, start: int, end: int) -> list[tuple[int, int]]:
        """Those of them that this rank has."""
        found = self.cuts(start, end)
        return [found[piece] for piece in own_pieces(self._rank, self._size)]

    def cut(self, batch: Batch, start: int, end: int) -> tuple[Batch, Pieces]:
        """This rank's pieces of the chunk ``start``..``end`` - 1 of a batch, and everybody's."""
        parts = [batch.cut(a, b) for a, b in self.cuts(start, end)]
        pieces = Pieces(self, tuple(p.length for p in parts), tuple(p.skip for p in parts))
        return joined([parts[piece] for piece in pieces.own]), pieces

    def gather(self, x: Tensor, kind: str) -> Tensor:
        """[size, *x.shape]: the tensors of all ranks, which agree on the shape."""
        found = x.new_empty(self._size, *x.shape)
        self._count(kind, x.nbytes, x.nbytes * (self._size - 1))
        flat = found.view(self._size * len(x), *x.shape[1:])
        self._run(kind, lambda: _all_gather(flat, x.contiguous(), group=self.process_group))
        return found

    def sum_own(self, x: Tensor, kind: str) -> Tensor:
        """This rank's entry of the sum over ranks of ``x`` [size, ...]."""
        found = x.new_empty(x.shape[1:])
        size = found.nbytes * (self._size - 1)
        self._count(kind, size, size)
        flat = x.contiguous().flatten(0, 1)
        self._run(kind, lambda: _reduce_scatter(found, flat, group=self.process_group))
        return found

    def total(self, x: Tensor, kind: str) -> Tensor:
        """The sum of ``x`` over all ranks."""
        found = x.clone()
        self._count(kind, x.nbytes, x.nbytes)
        self._run(kind, lambda: dist.all_reduce(found, group=self.process_group))
        return found

    def _count(self, kind: str, given: int, received: int) -> None:
        one = self.sent.setdefault(kind, Sent())
        one.calls += 1
        one.given += given
        one.received += received

    def _run(self, kind: str, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as fault:  # torch.distributed's own errors are kinds of it
            raise GenoctxError(
                f"rank {dist.get_rank()} lost the other ranks of its window while exchanging {kind}: {fault}",
                "look for the first error of another rank; the run resumes from its last checkpoint",
            ) from fault
