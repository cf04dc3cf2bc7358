"""Exact streamed training of a window: a forward sweep without a graph, then chunks from last to first.

The forward sweep keeps what enters each chunk (recurrent carries), appends latents and pooled keys
to the window's storages and records what was selected. The backward sweep rebuilds one chunk's
graph at a time, replays the recorded choices, and backpropagates the chunk's loss together with the
gradients that later chunks left behind: of the leaving carry, and of this chunk's latents and
pooled keys, which wait in the storages' gradient buffers. The last chunk needs no forward sweep,
since nothing follows it; so a window of one chunk is ordinary backpropagation.

Memory: one chunk's graph + one recurrent carry per chunk + the window's storages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genoctx.engine.batch import Batch, Coefficients, Denominators
from genoctx.engine.homes import Slabs
from genoctx.model.carry import Aux, Carry, Choices, DsaCarry, LayerCarry, Storage
from genoctx.model.hybrid import Hybrid, Output
from genoctx_kernels.loss import linear_cross_entropy
from genoctx_kernels.numerics import accumulator

Bounds = list[tuple[int, int]]
OnChunk = Callable[[int, str], None]
"""Called after every chunk with its number of tokens and the sweep's name; may raise to stop."""


def quiet(tokens: int, sweep: str) -> None:
    """An ``OnChunk`` that does nothing."""
    del tokens, sweep


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
    """What the forward sweep leaves for the backward sweep."""

    carries: list[Carry]
    """What enters each chunk, one entry per chunk."""
    chunks: int
    tokens: int
    """Per row, padding included."""
    choices: list[tuple[Choices | None, ...] | None] = field(default_factory=list)
    """Per chunk and layer; None for the last chunk, which chooses in the backward sweep."""
    router_counts: Tensor | None = None
    router_rows: int = 0
    slabs: Slabs = field(default_factory=Slabs)

    def storages(self) -> Iterator[tuple[Storage, Storage]]:
        """(latents, pooled keys) of every DSA layer and row."""
        for carry in self.carries[-1]:
            if isinstance(carry, DsaCarry):
                for row in carry.rows:
                    yield row.latents.storage, row.keys.storage

    def record(self, out: Output) -> None:
        """Keep what leaves one chunk: carries and choices move into slabs of exact size."""
        self.carries.append(tuple(self._kept_carry(i, layer) for i, layer in enumerate(out.carry)))
        self.choices.append(tuple(self._kept_choices(i, layer) for i, layer in enumerate(out.choices)))
        self.count_routing(out.aux)

    def _kept_carry(self, layer: int, carry: LayerCarry) -> LayerCarry:
        if isinstance(carry, DsaCarry):
            return carry  # its prefixes live in storages; the open pool is a handful of rows
        tensors = enumerate(carry.tensors())
        return carry.replaced(
            tuple(self.slabs.put((layer, i), t, self.chunks * t.numel()) for i, t in tensors)
        )

    def _kept_choices(self, layer: int, choices: Choices | None) -> Choices | None:
        if choices is None:
            return None
        pools, experts = choices.pools, choices.experts
        if pools is not None:
            rows = enumerate(pools)
            pools = tuple(self.slabs.put((layer, "pools", b), t, self.tokens * t.shape[1]) for b, t in rows)
        if experts is not None:
            total = self.tokens * self.batch_rows * experts.shape[1]
            experts = self.slabs.put((layer, "experts"), experts, total)
        return Choices(pools, experts)

    @property
    def batch_rows(self) -> int:
        first = self.carries[0][0]
        return len(first.rows) if isinstance(first, DsaCarry) else len(first.state)

    def held_bytes(self) -> int:
        """Bytes of everything kept for the window: storages, the d-latents to come, carries, ids."""
        rows = [s.rows for pair in self.storages() for s in pair]
        gradients = [
            latents.rows.numel() * accumulator(latents.rows.dtype).itemsize for latents, _ in self.storages()
        ]
        return self.slabs.nbytes + sum(gradients) + sum(t.nbytes for t in rows)

    def count_routing(self, aux: tuple[Aux, ...]) -> None:
        for layer in aux:
            if layer.router_counts is not None:
                seen = layer.router_counts
                self.router_counts = seen if self.router_counts is None else self.router_counts + seen
                self.router_rows += layer.router_rows


@torch.no_grad()
def forward_sweep(model: Hybrid, batch: Batch, bounds: Bounds, on_chunk: OnChunk = quiet) -> Tape:
    """Walk all chunks but the last, keeping what the backward sweep needs."""
    start_carry = model.initial_carry(len(batch.tokens_BT), batch.length)
    tape = Tape([start_carry], chunks=len(bounds), tokens=batch.length)
    for start, end in bounds[:-1]:
        part = batch.cut(start, end).to(model.device)
        out = model(part.tokens_BT, tape.carries[-1], skip=part.skip)
        tape.record(out)
        on_chunk(part.tokens_BT.numel(), "forward")
    tape.choices.append(None)
    return tape


def _open_gradients(tape: Tape, with_keys: bool) -> None:
    """Zeroed d-latent (and d-key) buffers; pooled keys are only replayed where the KL needs them."""
    for latents, keys in tape.storages():
        for storage in (latents, keys) if with_keys else (latents,):
            storage.gradient = torch.zeros_like(storage.rows, dtype=accumulator(storage.rows.dtype))


def _seal(tape: Tape) -> None:
    for latents, keys in tape.storages():
        latents.sealed = keys.sealed = True


def _attach(carry: Carry) -> tuple[Carry, list[Tensor]]:
    """The same carry as leaves of a new graph."""
    leaves: list[Tensor] = []
    attached = []
    for layer in carry:
        fresh = tuple(t.detach().requires_grad_() for t in layer.tensors())
        leaves.extend(fresh)
        attached.append(layer.replaced(fresh))
    return tuple(attached), leaves


def _objective(
    model: Hybrid,
    out: Output,
    chunk: Batch,
    tape: Tape,
    weights: Coefficients,
    per: Denominators,
) -> tuple[Tensor, Losses]:
    """This chunk's share of the step's loss (float64 scalar) and its parts."""
    targets, share = chunk.targets_BT.flatten(), chunk.share_BT
    hidden, head = out.hidden.flatten(0, 1), model.lm_head.weight
    nats = linear_cross_entropy(hidden, head, targets, None if share is None else share.flatten())
    losses = Losses(nats=nats.item(), targets=chunk.count_targets(), weight=chunk.weigh_targets())
    total = nats / per.weight
    if weights.balance and tape.router_counts is not None:
        share = tape.router_counts.double() / tape.router_rows
        probs = torch.stack([a.router_probs for a in out.aux if a.router_probs is not None]).sum(0).double()
        balance = (weights.balance / per.batches) * len(share) * (share * probs / tape.router_rows).sum()
        total, losses.balance = total + balance, balance.item()
    kls = [a.kl for a in out.aux if a.kl is not None]
    if weights.indexer_kl and kls and per.queries:
        kl = torch.stack(kls).sum() * (weights.indexer_kl / per.queries)
        total, losses.indexer_kl = total + kl, kl.item()
    return total, losses


def backward_sweep(
    model: Hybrid,
    batch: Batch,
    bounds: Bounds,
    tape: Tape,
    weights: Coefficients,
    per: Denominators,
    on_chunk: OnChunk = quiet,
) -> Losses:
    """Chunks from last to first; adds parameter gradients into ``.grad``. The tape is used up."""
    _open_gradients(tape, with_keys=weights.indexer_kl > 0)
    losses = Losses()
    leaving: list[Tensor | None] | None = None
    for start, end in reversed(bounds):
        chunk = batch.cut(start, end).to(model.device)
        carry, leaves = _attach(tape.carries.pop())
        choices = tape.choices.pop()
        out = model(chunk.tokens_BT, carry, skip=chunk.skip, choices=choices)
        if leaving is None:  # the last chunk: only now is everything counted and stored
            tape.carries.append(out.carry)
            _seal(tape)
            tape.carries.pop()
            tape.count_routing(out.aux)
        total, part = _objective(model, out, chunk, tape, weights, per)
        losses += part
        _backpropagate(total, out.carry, leaving)
        leaving = [leaf.grad for leaf in leaves]
        on_chunk(chunk.tokens_BT.numel(), "backward")
    return losses


def _backpropagate(total: Tensor, carry: Carry, leaving: list[Tensor | None] | None) -> None:
    roots, gradients = [total], [torch.ones_like(total)]
    tensors = [t for layer in carry for t in layer.tensors()]
    for tensor, gradient in zip(tensors, leaving or [None] * len(tensors), strict=True):
        if gradient is not None and tensor.requires_grad:
            roots.append(tensor)
            gradients.append(gradient)
    torch.autograd.backward(roots, gradients)


def train_window(
    model: Hybrid,
    batch: Batch,
    bounds: Bounds,
    weights: Coefficients,
    per: Denominators,
    on_chunk: OnChunk = quiet,
) -> Losses:
    """Both sweeps over one micro-batch: gradients of its share of the step's loss, added to ``.grad``."""
    tape = forward_sweep(model, batch, bounds, on_chunk)
    return backward_sweep(model, batch, bounds, tape, weights, per, on_chunk)


@torch.no_grad()
def walk(model: Hybrid, batch: Batch, bounds: Bounds) -> Iterator[tuple[int, int, Tensor]]:
    """Chunk by chunk, one pass, no graph: (start, end, final hidden states [B, T, D])."""
    carry = model.initial_carry(len(batch.tokens_BT), batch.length)
    for start, end in bounds:
        part = batch.cut(start, end).to(model.device)
        out = model(part.tokens_BT, carry, skip=part.skip)
        carry = out.carry
        yield start, end, out.hidden
