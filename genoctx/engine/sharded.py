"""The engine over many ranks: windows side by side, one denominator, one optimizer step.

Every rank walks the same schedule: as many micro-batches, each of as many chunks, because gathering
weights and moving tokens to experts take all ranks. A rank without a window walks an idle one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds
from genoctx.engine.engine import Engine
from genoctx.engine.group import TorchGroup
from genoctx.engine.mesh import Mesh
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.sharding import Sharded, local
from genoctx.engine.stream import Losses, OnChunk, train_window

NOTHING = Coefficients()


def rounds(lengths: Sequence[int], ranks: int, chunk: int) -> list[tuple[int, list[int | None]]]:
    """Micro-batches of ``lengths`` tokens dealt to ``ranks`` data-parallel ranks.

    Returns (chunks, index per rank or None for nothing to do) per round. All of a round have as many
    chunks. The same on every rank: a pure function of the table.
    """
    by_chunks: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_chunks.setdefault(-(-length // chunk), []).append(index)
    found: list[tuple[int, list[int | None]]] = []
    for chunks, indices in by_chunks.items():
        for start in range(0, len(indices), ranks):
            taken: list[int | None] = [*indices[start : start + ranks]]
            found.append((chunks, taken + [None] * (ranks - len(taken))))
    return found


def idle(chunks: int, pieces: int = 1) -> Batch:
    """A window of ``chunks`` chunks of padding, of ``pieces`` tokens each: no indexer has anything to look at."""
    tokens = torch.zeros(1, chunks * pieces, dtype=torch.int64)
    return Batch(tokens, torch.full_like(tokens, -100), (), skip=(chunks * pieces,))


def is_idle(batch: Batch) -> bool:
    return not batch.names


@dataclass
class ShardedEngine(Engine):
    """An :class:`Engine` whose model is spread over the ranks of a mesh.

    ``train_step`` gets this rank's micro-batches: one per round, idle ones where it has no window.
    """

    sharded: Sharded = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.mesh.layout.cp > 1:
            self.group = TorchGroup(self.mesh.cp_group)

    @property
    def mesh(self) -> Mesh:
        return self.sharded.mesh

    def denominators(self, batches: list[Batch]) -> Denominators:
        """Sums over all ranks; the ranks that share a window count it once."""
        own = super().denominators([b for b in batches if not is_idle(b)])
        counts = self.mesh.cp_rank == 0
        weight, queries, count = self.mesh.sum(
            own.weight * counts, own.queries * counts, own.batches * counts
        )
        return Denominators(weight, int(queries), int(count))

    def limits(self, batch: Batch) -> list[tuple[int, int]]:
        """Chunk limits; those of an idle window are as short as they can be."""
        return bounds(batch.length, self.mesh.layout.cp if is_idle(batch) else self.chunk)

    def sweeps(
        self, batches: list[Batch], per: Denominators, optimizer: Optimizer, on_chunk: OnChunk, key: str
    ) -> Losses:
        """This rank's sweeps; the losses are those of all ranks together. Keeps no journal."""
        del optimizer, key
        limits = [self.limits(batch) for batch in batches]
        self.sharded.expect(sum(len(cuts) for cuts in limits))

        def passed(tokens: int, sweep: str) -> None:
            if sweep == "backward":
                self.sharded.passed()
            on_chunk(tokens, sweep)

        losses = Losses()
        try:
            for batch, cuts in zip(batches, limits, strict=True):
                weights = NOTHING if is_idle(batch) else self.coefficients
                losses += train_window(
                    self.model, batch, cuts, weights, per, passed, homes=self.homes, group=self.group
                )
        except BaseException:
            self.sharded.abandon()
            raise
        sums = self.mesh.sum(losses.nats, losses.targets, losses.weight, losses.balance, losses.indexer_kl)
        return Losses(sums[0], int(sums[1]), *sums[2:])


class _Parts(nn.Module):
    """The rank's parts as plain parameters of the same names, sharing memory with the model's."""

    def __init__(self, sharded: Sharded) -> None:
        super().__init__()
        self.parts = {
            name: nn.Parameter(local(p), requires_grad=p.requires_grad)
            for name, p in (*sharded.parameters.items(), *sharded.replicated.items())
        }

    def named_parameters(self, *_: object, **__: object) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.parts.items())


class ShardedOptimizer(Optimizer):
    """AdamW over the rank's parts; the gradient norm is that of all ranks together."""

    def __init__(self, sharded: Sharded, settings: AdamWSettings) -> None:
        self.sharded = sharded
        super().__init__(_Parts(sharded), settings)

    def zero_grad(self) -> None:
        super().zero_grad()
        self.sharded.zero_grad()

    def grad_norm(self) -> float:
        """Global L2 norm over all ranks; takes the gradients over from the model."""
        mine = torch.zeros((), dtype=torch.float64)
        for name, gradient in self.sharded.local_gradients().items():
            self.masters[name].grad = gradient
            if name not in self.sharded.replicated or self.sharded.mesh.rank == 0:
                mine += gradient.square().sum(dtype=torch.float64).cpu()
        return math.sqrt(self.sharded.mesh.sum(mine.item())[0])
