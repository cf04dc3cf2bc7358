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

import torch
from torch import Tensor

from genoctx.engine.batch import Batch, Coefficients, Denominators
from genoctx.engine.group import TorchGroup
from genoctx.engine.homes import Homes
from genoctx.engine.journal import WindowJournal
from genoctx.engine.tape import Bounds, Losses, Tape
from genoctx.model.carry import Carry, KdaCarry
from genoctx.model.hybrid import Hybrid, Output
from genoctx_kernels.loss import linear_cross_entropy

__all__ = [
    "Bounds",
    "Losses",
    "OnChunk",
    "Tape",
    "backward_sweep",
    "forward_sweep",
    "quiet",
    "train_window",
    "walk",
]

OnChunk = Callable[[int, str], None]
"""Called after every chunk with its number of tokens and the sweep's name; may raise to stop."""


def quiet(tokens: int, sweep: str) -> None:
    """An ``OnChunk`` that does nothing."""
    del tokens, sweep


@torch.no_grad()
def forward_sweep(
    model: Hybrid, batch: Batch, bounds: Bounds, on_chunk: OnChunk = quiet, tape: Tape | None = None
) -> Tape:
    """Walk all chunks but the last, keeping what the backward sweep needs; goes on where ``tape`` stands."""
    tape = tape or Tape.open(model, len(batch.tokens_BT), bounds)
    for start, end in bounds[len(tape.choices) : -1]:
        part, pieces = tape.piece(batch, start, end)
        out = model(part.tokens_BT.to(model.device), tape.entering, skip=part.skip, pieces=pieces)
        tape.record(out)
        on_chunk(part.tokens_BT.numel(), "forward")
    tape.choices.append(None)
    return tape


def _attach(carry: Carry, with_keys: bool) -> tuple[Carry, list[Tensor]]:
    """The same carry as leaves of a new graph; only the indexer's KL differentiates the keys of open pools."""
    leaves: list[Tensor] = []
    attached = []
    for layer in carry:
        differentiated = with_keys or isinstance(layer, KdaCarry)
        fresh = tuple(t.detach().requires_grad_(differentiated) for t in layer.tensors())
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
    hidden, head = model.head(out.hidden.flatten(0, 1))
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
    with_keys = weights.indexer_kl > 0
    tape.open_gradients(with_keys)
    for start, end in reversed(bounds[: tape.left]):
        part, pieces = tape.piece(batch, start, end)
        chunk = part.to(model.device)
        entering, choices = tape.take()
        carry, leaves = _attach(entering, with_keys)
        out = model(chunk.tokens_BT, carry, skip=chunk.skip, choices=choices, pieces=pieces)
        if tape.leaving is None:  # the last chunk: only now is everything counted and stored
            tape.seal()
            tape.count_routing(out.aux)
            tape.total_routing()
        total, losses = _objective(model, out, chunk, tape, weights, per)
        _backpropagate(total, out.carry, tape.leaving)
        del out, total, carry  # what is left of this graph would cut the heap up while the next one is built
        tape.losses += losses
        tape.leaving = [leaf.grad for leaf in leaves]
        tape.left -= 1
        on_chunk(chunk.tokens_BT.numel(), "backward")
    return tape.losses


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
    homes: Homes | None = None,
    journal: WindowJournal | None = None,
    group: TorchGroup | None = None,
) -> Losses:
    """Both sweeps over one micro-batch: gradients of its share of the step's loss, added to ``.grad``.

    With a ``group``, its ranks walk the same batch together, each its pieces of every chunk: losses and
    gradients are this rank's share.
    With a ``journal``, goes on where it says, and keeps it up to date; also when ``on_chunk`` raises.
    """
    tape = Tape.open(
        model, len(batch.tokens_BT), bounds, homes, indexer_kl=weights.indexer_kl > 0, group=group
    )
    if journal is not None:
        journal.restore(tape)

    def after_chunk(tokens: int, sweep: str) -> None:
        if journal is not None:
            journal.keep(tape)
        try:
            on_chunk(tokens, sweep)
        except Exception:
            if journal is not None:
                journal.save(tape)
            raise

    forward_sweep(model, batch, bounds, after_chunk, tape)
    return backward_sweep(model, batch, bounds, tape, weights, per, after_chunk)


@torch.no_grad()
def walk(
    model: Hybrid, batch: Batch, bounds: Bounds, group: TorchGroup | None = None
) -> Iterator[tuple[int, int, Tensor]]:
    """Chunk by chunk, one pass, no graph: (start, end, final hidden states [B, T, D]).

    With a ``group``: of this rank's pieces of every chunk, one after the other.
    """
    carry = model.initial_carry(len(batch.tokens_BT), batch.length)
    for start, end in bounds:
        part, pieces = (batch.cut(start, end), None) if group is None else group.cut(batch, start, end)
        out = model(part.tokens_BT.to(model.device), carry, skip=part.skip, pieces=pieces)
        carry = out.carry
        if pieces is None or group is None:
            yield start, end, out.hidden
        else:
            for (first, last), hidden in zip(
                group.own_cuts(start, end), pieces.split(out.hidden), strict=True
            ):
                yield first, last, hidden
