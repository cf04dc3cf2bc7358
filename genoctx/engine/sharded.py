"""The engine over many ranks: windows side by side, one denominator, one optimizer step.

Every rank walks the same schedule: as many micro-batches, each of as many chunks, because gathering
weights and moving tokens to experts take all ranks. A rank without a window walks an idle one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from genoctx.engine.agreement import Ranks
from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds
from genoctx.engine.bytes import PARAMETERS
from genoctx.engine.engine import Engine, Scored
from genoctx.engine.group import TorchGroup
from genoctx.engine.half_made import HalfMade
from genoctx.engine.homes import Homes
from genoctx.engine.mesh import Mesh
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.sharding import Sharded, local, whole_tensor
from genoctx.engine.stream import Losses, OnChunk, quiet, train_window
from genoctx.errors import ConfigError, GenoctxError, LostContact, shared
from genoctx.model.parallel.pieces import PARTS

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


def idle(chunks: int, cp: int = 1) -> Batch:
    """A window of ``chunks`` chunks of padding, no indexer has anything to look at: a token for each of the
    pieces of ``cp`` ranks."""
    tokens = torch.zeros(1, chunks * PARTS * cp, dtype=torch.int64)
    return Batch(tokens, torch.full_like(tokens, -100), (), skip=(tokens.numel(),))


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
        if self.journal is not None:
            self.journal.ranks = Ranks(self.mesh)

    @property
    def mesh(self) -> Mesh:
        return self.sharded.mesh

    def denominators(self, batches: list[Batch]) -> Denominators:
        """Sums over all ranks; the ranks that share a window count it once."""
        mine = [batch for batch in batches if not is_idle(batch)]
        own = self.mesh.together(lambda: super(ShardedEngine, self).denominators(mine))
        counts = self.mesh.cp_rank == 0
        weight, queries, count = self.mesh.sum(
            own.weight * counts, own.queries * counts, own.batches * counts
        )
        return Denominators(weight, int(queries), int(count))

    def not_finite(self, names: list[str]) -> GenoctxError:
        """Of the windows of all ranks: each of them raises it."""
        said = sorted({name for others in self.mesh.everybodys(names) for name in others})
        error = super().not_finite(said)
        return shared(type(error), error.message, error.hint)

    def limits(self, batch: Batch) -> list[tuple[int, int]]:
        """Chunk limits; those of an idle window are as short as they can be."""
        return bounds(batch.length, PARTS * self.mesh.layout.cp if is_idle(batch) else self.chunk)

    @property
    def first(self) -> bool:
        return self.mesh.first

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """As of one process, one at a time. Collective."""
        for name in sorted(name for name, _ in self.sharded.parts()):
            yield name, whole_tensor(self.sharded, name).to(self.sharded.part(name).working)

    def score_all(
        self,
        lengths: Sequence[int],
        read: Callable[[int], Batch],
        subset: Tensor,
        letters: int = 1,
        on_chunk: OnChunk = quiet,
    ) -> Generator[tuple[int, Scored]]:
        """Collective. The first rank holds the results of a round; its ``on_chunk`` gets the tokens of all."""
        for chunks, taken in rounds(lengths, self.mesh.layout.dp, self.chunk):
            index = taken[self.mesh.dp_rank]
            batch = self.mesh.together(
                lambda index=index, chunks=chunks: (  # type: ignore[misc]
                    idle(chunks, self.mesh.layout.cp) if index is None else read(index)
                )
            )
            found: list[tuple[int, Scored]] = []
            for part in self.score(batch, subset, letters):
                mine = None if index is None or part.start == part.end else (index, part)
                others = [one for one in self.mesh.gather(mine) if one is not None]
                found += others
                on_chunk(
                    sum(len(piece.nats.full) * (piece.end - piece.start) for _, piece in others), "score"
                )
            refused = True
            try:
                yield from sorted(found, key=lambda one: (one[0], one[1].start))
                refused = False
            finally:
                refused = bool(self.mesh.largest(float(refused))[0])
            if refused:
                raise LostContact(
                    "the first rank refused what was scored", "its own message says why; nothing was written"
                )

    def sweeps(
        self, batches: list[Batch], per: Denominators, optimizer: Optimizer, on_chunk: OnChunk, key: str
    ) -> Losses:
        """This rank's sweeps; the losses are those of all ranks together."""
        del optimizer
        limits, half_made = [self.limits(batch) for batch in batches], HalfMade(self.sharded)
        first, losses, passed = 0, Losses(), 0
        if self.journal is not None:
            first, losses = self.journal.begin(f"{key} {self._cut}", half_made)
            passed = self.journal.passed(len(limits[first]))
        self.sharded.expect(sum(len(cuts) for cuts in limits[first:]) - passed)

        def after_chunk(tokens: int, sweep: str) -> None:
            if sweep == "backward":
                self.sharded.passed()
            on_chunk(tokens, sweep)

        try:
            for i, batch in enumerate(batches[first:], first):
                losses += train_window(
                    self.model,
                    batch,
                    limits[i],
                    NOTHING if is_idle(batch) else self.coefficients,
                    per,
                    after_chunk,
                    homes=self.homes,
                    journal=None if self.journal is None else self.journal.window(i, losses),
                    group=self.group,
                )
        except BaseException:
            self.sharded.abandon()
            half_made.forget()
            raise
        sums = self.mesh.sum(losses.nats, losses.targets, losses.weight, losses.balance, losses.indexer_kl)
        return Losses(sums[0], int(sums[1]), *sums[2:])

    @property
    def _cut(self) -> str:
        """What else the gradient sums of a rank depend on."""
        return f"{self.mesh.layout} pieces {PARTS} keep {self.sharded.keep} rank {self.mesh.rank}"


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

    def __init__(self, sharded: Sharded, settings: AdamWSettings, homes: Homes | None = None) -> None:
        """Raises ConfigError for a home of parameters that is not the device's: FSDP2 keeps their parts."""
        if homes is not None and homes[PARAMETERS].moves:
            raise ConfigError(
                "homes.parameters cannot leave the device where ranks share the parameters",
                "set homes.parameters = 'device'; homes.moments can leave, and more ranks make the parts smaller",
            )
        self.sharded = sharded
        super().__init__(_Parts(sharded), settings, homes)

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

    def largest(self, values: list[float]) -> list[float]:
        """Of each over all ranks."""
        return self.sharded.mesh.largest(*values)
