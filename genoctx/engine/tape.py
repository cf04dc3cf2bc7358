"""The tape of a window: what the forward sweep leaves for the backward sweep, each thing in its home.

Carries and ids go into slabs, latents and pooled keys into the storages of the prefixes, their gradients
into buffers beside them; all of it is reserved before the first chunk (genoctx/engine/bytes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genoctx.engine.batch import Batch
from genoctx.engine.bytes import CARRIES, D_LATENTS, IDS, LATENTS, window_needs
from genoctx.engine.group import TorchGroup
from genoctx.engine.homes import Homes
from genoctx.engine.slabs import Slabs
from genoctx.model.carry import Aux, Carry, Choices, DsaCarry, KdaCarry, LayerCarry, Storage, working_like
from genoctx.model.hybrid import Hybrid, Output
from genoctx.model.parallel.pieces import Pieces
from genoctx_kernels.numerics import accumulator

Bounds = list[tuple[int, int]]
LayerChoices = tuple[Choices | None, ...]


@dataclass
class Losses:
    """Sums over one or more windows; float64 on the host, divided once by the reader."""

    nats: float = 0.0
    """Each target's times what it counts."""
    targets: int = 0
    weight: float = 0.0
    """What the targets count together; ``nats / weight`` is the mean loss."""
    balance: float = 0.0
    """Weighted balance loss, already divided."""
    indexer_kl: float = 0.0
    """Weighted indexer KL, already divided."""

    def __iadd__(self, other: Losses) -> Losses:
        self.nats += other.nats
        self.targets += other.targets
        self.weight += other.weight
        self.balance += other.balance
        self.indexer_kl += other.indexer_kl
        return self


@dataclass
class Tape:
    """Where the two sweeps over a window stand. Made by :meth:`open`."""

    homes: Homes
    slabs: Slabs
    entering: Carry
    """What enters the next chunk of the forward sweep, where the model computes."""
    left: int
    """Chunks the backward sweep has still to do; it takes them from the end."""
    carries: list[Carry] = field(default_factory=list)
    """What enters each chunk, in its home."""
    choices: list[LayerChoices | None] = field(default_factory=list)
    """Per chunk and layer; None for the last chunk, which chooses in the backward sweep."""
    router_counts: Tensor | None = None
    router_rows: int = 0
    leaving: list[Tensor | None] | None = None
    """Gradients of the carry that enters the chunk done last by the backward sweep."""
    losses: Losses = field(default_factory=Losses)
    group: TorchGroup | None = None
    """The ranks that share the window's chunks; ids and routing counts are of this rank's pieces."""
    _coming: Callable[[], tuple[Carry, LayerChoices | None]] | None = None

    @classmethod
    def open(
        cls,
        model: Hybrid,
        batch: int,
        limits: Bounds,
        homes: Homes | None = None,
        *,
        indexer_kl: bool = False,
        group: TorchGroup | None = None,
    ) -> Tape:
        """Memory for ``batch`` windows cut at ``limits``, nothing walked yet.

        ``homes``: by default everything lies where the weights are. GenoctxError when a disk has no room.
        """
        homes = homes or Homes.on(model.device)
        dtype = working_like(model.embed_tokens.weight).dtype
        own = [group.own_cuts(*cut) if group else [cut] for cut in limits[:-1]]
        recorded = sum(end - start for cuts in own for start, end in cuts)
        needs = window_needs(model.config, limits, batch, dtype, indexer_kl=indexer_kl, recorded=recorded)
        slabs = Slabs(homes, (need for need in needs if need.category in (CARRIES, IDS)))
        start = model.initial_carry(batch, limits[-1][1], homes[LATENTS].allocate)
        tape = cls(homes, slabs, start, left=len(limits), group=group)
        tape.open_gradients(with_keys=indexer_kl)
        tape._keep(start)
        return tape

    # forward

    def record(self, out: Output) -> None:
        """Keep what leaves one chunk of the forward sweep."""
        self.keep(out.carry, out.choices)
        self.count_routing(out.aux)

    def keep(self, carry: Carry, choices: LayerChoices) -> None:
        """Move a carry and the choices made on the way to it into their homes."""
        self._keep(carry)
        kept = tuple(self._kept_choices(i, layer) for i, layer in enumerate(choices))
        self.homes[IDS].behind(_ids(kept))
        self.choices.append(kept)

    def _keep(self, carry: Carry) -> None:
        if self.carries:
            self.homes[CARRIES].behind(_states(self.carries[-1]))
        kept = tuple(self._kept_carry(i, layer) for i, layer in enumerate(carry))
        self.carries.append(kept)
        self.entering = tuple(_nearer(k, c) for k, c in zip(kept, carry, strict=True))

    def _kept_carry(self, layer: int, carry: LayerCarry) -> LayerCarry:
        if isinstance(carry, DsaCarry):
            return carry  # its prefixes live in storages; the open pool is a handful of rows
        return carry.replaced(tuple(self.slabs.put((layer, i), t) for i, t in enumerate(carry.tensors())))

    def _kept_choices(self, layer: int, choices: Choices | None) -> Choices | None:
        if choices is None:
            return None
        pools, experts = choices.pools, choices.experts
        if pools is not None:
            pools = tuple(self.slabs.put((layer, "pools", b), t) for b, t in enumerate(pools))
        if experts is not None:
            experts = self.slabs.put((layer, "experts"), experts)
        return Choices(pools, experts)

    def count_routing(self, aux: tuple[Aux, ...]) -> None:
        """Add up what the balance loss counts over the window."""
        for layer in aux:
            if layer.router_counts is not None:
                seen = layer.router_counts
                self.router_counts = seen if self.router_counts is None else self.router_counts + seen
                self.router_rows += layer.router_rows

    def piece(self, batch: Batch, start: int, end: int) -> tuple[Batch, Pieces | None]:
        """This rank's tokens of a chunk, and where the others' are."""
        return (batch.cut(start, end), None) if self.group is None else self.group.cut(batch, start, end)

    # backward

    def total_routing(self) -> None:
        """Once every chunk is counted: the counts of all ranks that share the window."""
        if self.group is not None and self.router_counts is not None:
            rows = self.router_counts.new_tensor([self.router_rows])
            total = self.group.total(torch.cat((self.router_counts, rows)), "routing counts")
            self.router_counts, self.router_rows = total[:-1], int(total[-1])

    def open_gradients(self, with_keys: bool) -> None:
        """Zeroed d-latent (and d-key) buffers, once; keys are only replayed where the KL needs them."""
        for latents, keys in self.storages():
            for storage in (latents, keys) if with_keys else (latents,):
                if storage.gradient is None:
                    dtype = accumulator(storage.rows.dtype)
                    storage.gradient = self.homes[D_LATENTS].allocate(tuple(storage.rows.shape), dtype)

    def seal(self) -> None:
        """Every chunk is stored: from now on storages are read, not written."""
        for latents, keys in self.storages():
            latents.sealed = keys.sealed = True

    def take(self) -> tuple[Carry, LayerChoices | None]:
        """What enters the last chunk that is left, and its choices, where the model computes.

        What enters the chunk before it is sent for, to arrive while this one is computed.
        """
        chunk = self.left - 1
        if chunk + 1 < len(self.carries):  # done with
            self.homes[CARRIES].behind(_states(self.carries[chunk + 1]))
            self.homes[IDS].behind(_ids(self.choices[chunk + 1] or ()))
        carry, choices = (self._coming or self._send_for(chunk))()
        self._coming = self._send_for(chunk - 1) if chunk else None
        return carry, choices

    def _send_for(self, chunk: int) -> Callable[[], tuple[Carry, LayerChoices | None]]:
        carry, choices = self.carries[chunk], self.choices[chunk]
        states = self.homes[CARRIES].send_for(_states(carry))
        ids = self.homes[IDS].send_for(_ids(choices or ()))
        return lambda: (_with_states(carry, states()), choices and _with_ids(choices, ids()))

    def settle(self) -> None:
        """Wait until everything kept is in its home."""
        for home in {id(h): h for h in self.homes.by_category.values()}.values():
            home.settle()

    # accounts

    @property
    def rows(self) -> int:
        """Windows side by side."""
        first = self.entering[0]
        return len(first.rows) if isinstance(first, DsaCarry) else len(first.state)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.entering[0].tensors()[0].device

    def storages(self) -> Iterator[tuple[Storage, Storage]]:
        """(latents, pooled keys) of every DSA layer and row."""
        for carry in self.entering:
            if isinstance(carry, DsaCarry):
                for row in carry.rows:
                    yield row.latents.storage, row.keys.storage

    def held(self) -> dict[str, int]:
        """Bytes of everything kept for the window, by category."""
        pairs = list(self.storages())
        gradients = [s.gradient.nbytes for pair in pairs for s in pair if s.gradient is not None]
        own = {LATENTS: sum(s.rows.nbytes for pair in pairs for s in pair), D_LATENTS: sum(gradients)}
        return {CARRIES: 0, IDS: 0, **self.slabs.nbytes, **own}

    def held_bytes(self) -> int:
        """Bytes of everything kept for the window: storages, d-latents, carries, ids."""
        return sum(self.held().values())


def _nearer(kept: LayerCarry, computed: LayerCarry) -> LayerCarry:
    """The kept carry where the model can compute on it; it is the same, and the other may go."""
    here = {t.device for t in computed.tensors()}
    return kept if {t.device for t in kept.tensors()} == here else computed


def _states(carry: Carry) -> list[Tensor]:
    return [t for layer in carry if isinstance(layer, KdaCarry) for t in layer.tensors()]


def _with_states(carry: Carry, states: list[Tensor]) -> Carry:
    rest = iter(states)
    return tuple(
        layer.replaced(tuple(next(rest) for _ in layer.tensors())) if isinstance(layer, KdaCarry) else layer
        for layer in carry
    )


def _ids(choices: LayerChoices) -> list[Tensor]:
    return [t for c in choices if c for t in (*(c.pools or ()), c.experts) if t is not None]


def _with_ids(choices: LayerChoices, ids: list[Tensor]) -> LayerChoices:
    rest = iter(ids)

    def moved(c: Choices) -> Choices:
        pools = None if c.pools is None else tuple(next(rest) for _ in c.pools)
        return Choices(pools, None if c.experts is None else next(rest))

    return tuple(c and moved(c) for c in choices)
