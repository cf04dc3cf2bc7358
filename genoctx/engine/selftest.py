"""Streamed against whole-window backpropagation, all gradients: what tests and ``doctor --selftest`` run.

Scores that tie mathematically may differ in the last bit between two ways of cutting a window, and
then two equally good selections have different gradients. So the whole-window run replays the
streamed selections; whether it would have chosen the same by itself is reported beside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genoctx.engine.batch import Batch, Coefficients, Denominators
from genoctx.engine.stream import Bounds, Losses, Tape, backward_sweep, forward_sweep, train_window
from genoctx.model.carry import Choices
from genoctx.model.hybrid import Hybrid

NOISE = 1e-14
"""Of the step's largest gradient, or part of the loss. Some gradients are zero in theory (the router's, with
one expert a token, since its weight is normalised to a constant); what rounding leaves there cannot be
compared."""

LayerChoices = tuple[Choices | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Largest differences between the streamed and the whole-window step."""

    gradient: float
    """max over parameters of max |a - b| / max |b|."""
    worst: str
    """The parameter where that is."""
    loss: float
    """Largest relative difference of the three parts of the loss."""
    same_choices: bool
    """The whole-window run, left to itself, selects the same pools and experts."""
    parameters: int
    """Parameters that got a gradient."""


@torch.no_grad()
def streamed_choices(model: Hybrid, batch: Batch, bounds: Bounds) -> LayerChoices:
    """What every layer chooses when the window is walked in these chunks, joined over the window."""
    carry = model.initial_carry(len(batch.tokens_BT), batch.length)
    made: list[LayerChoices] = []
    for start, end in bounds:
        part = batch.cut(start, end)
        out = model(part.tokens_BT.to(model.device), carry, skip=part.skip)
        carry = out.carry
        made.append(out.choices)
    return tuple(_joined(list(layer), len(batch.tokens_BT)) for layer in zip(*made, strict=True))


def _joined(chunks: list[Choices | None], rows: int) -> Choices | None:
    if chunks[0] is None:
        return None
    kept = [c for c in chunks if c is not None]
    pools = None
    if kept[0].pools is not None:
        pools = tuple(torch.cat([c.pools[b] for c in kept if c.pools is not None]) for b in range(rows))
    experts = None
    if kept[0].experts is not None:
        parts = [c.experts.unflatten(0, (rows, -1)) for c in kept if c.experts is not None]
        experts = torch.cat(parts, 1).flatten(0, 1)
    return Choices(pools, experts)


def _same(a: LayerChoices, b: LayerChoices) -> bool:
    def tensors(choices: LayerChoices) -> list[Tensor]:
        return [t for c in choices if c for t in (*(c.pools or ()), c.experts) if t is not None]

    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def _gradients(model: Hybrid) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    return found


def _whole(
    model: Hybrid, batch: Batch, choices: LayerChoices, weights: Coefficients, per: Denominators
) -> Losses:
    """Ordinary backpropagation through the whole window as one chunk, with given choices."""
    bounds = [(0, batch.length)]
    tape: Tape = forward_sweep(model, batch, bounds)
    tape.choices[0] = choices
    return backward_sweep(model, batch, bounds, tape, weights, per)


def compare(model: Hybrid, batches: list[Batch], cuts: list[Bounds], weights: Coefficients) -> Comparison:
    """One step over ``batches``, each streamed in its own ``cuts`` and as a whole; gradients of the sum."""
    per = Denominators.of(batches, model.config.index_kpool)
    _gradients(model)
    streamed, whole, same = Losses(), Losses(), True
    chosen = [streamed_choices(model, batch, bounds) for batch, bounds in zip(batches, cuts, strict=True)]
    for batch, bounds in zip(batches, cuts, strict=True):
        streamed += train_window(model, batch, bounds, weights, per)
    a = _gradients(model)
    for batch, choices in zip(batches, chosen, strict=True):
        whole += _whole(model, batch, choices, weights, per)
        same = same and _same(choices, streamed_choices(model, batch, [(0, batch.length)]))
    b = _gradients(model)
    if a.keys() != b.keys():
        raise AssertionError(f"different parameters got gradients: {sorted(a.keys() ^ b.keys())}")
    largest = max(g.abs().max().item() for g in b.values())
    errors = {name: _relative(a[name], b[name], NOISE * largest) for name in a}
    worst = max(errors, key=lambda name: errors[name])
    parts = [
        (streamed.nats, whole.nats),
        (streamed.balance, whole.balance),
        (streamed.indexer_kl, whole.indexer_kl),
    ]
    noise = NOISE * max(abs(y) for _, y in parts)
    # where every key is the same (poly-A) the KL is zero in theory, and rounding noise is what is left of it
    loss = max(abs(x - y) / max(abs(x), abs(y)) if max(abs(x), abs(y)) > noise else 0.0 for x, y in parts)
    return Comparison(errors[worst], worst, loss, same, len(a))


def _relative(a: Tensor, b: Tensor, noise: float) -> float:
    """max |a - b| / max |b|; 0 where both are rounding noise about an exact zero."""
    if max(a.abs().max().item(), b.abs().max().item()) <= noise:
        return 0.0
    return (a - b).abs().max().item() / b.abs().max().item()
