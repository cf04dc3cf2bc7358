"""What a journal keeps of a tape, as named tensors, and how a tape is made from them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from genoctx.engine.tape import LayerChoices, Losses, Tape
from genoctx.model.carry import Carry, Choices, DsaCarry, DsaRow, Storage

Named = list[tuple[str, Tensor]]


def forward_tensors(tape: Tape, first: int, end: int) -> Named:
    """What chunks first..end-1 left: carries, ids, and the rows they appended to latents and keys."""
    named: Named = []
    for chunk in range(first, end):
        named += _carry_tensors(tape.carries[chunk], tape.carries[chunk + 1], chunk)
        for i, choices in enumerate(tape.choices[chunk] or ()):
            if choices is not None and choices.pools is not None:
                named += [(f"pools.{chunk}.{i}.{b}", t) for b, t in enumerate(choices.pools)]
            if choices is not None and choices.experts is not None:
                named.append((f"experts.{chunk}.{i}", choices.experts))
    return named + _routing(tape)


def _carry_tensors(before: Carry, after: Carry, chunk: int) -> Iterator[tuple[str, Tensor]]:
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        for k, tensor in enumerate(new.tensors()):
            yield f"carry.{chunk}.{i}.{k}", tensor
        if isinstance(old, DsaCarry) and isinstance(new, DsaCarry):
            for b, (a, z) in enumerate(zip(old.rows, new.rows, strict=True)):
                yield f"latents.{chunk}.{i}.{b}", z.latents.rows[a.latents.length :]
                yield f"keys.{chunk}.{i}.{b}", z.keys.rows[a.keys.length :]


def replay_chunk(tape: Tape, chunk: int, found: Mapping[str, Tensor]) -> None:
    """Let ``tape`` record chunk ``chunk`` as the forward sweep did."""
    carry, choices = [], []
    for i, layer in enumerate(tape.entering):
        tensors = tuple(found[f"carry.{chunk}.{i}.{k}"] for k in range(len(layer.tensors())))
        if isinstance(layer, DsaCarry):
            layer = DsaCarry(
                tuple(_extended(row, f"{chunk}.{i}.{b}", found) for b, row in enumerate(layer.rows))
            )
        carry.append(layer.replaced(tensors))
        pools = [found[name] for b in range(tape.rows) if (name := f"pools.{chunk}.{i}.{b}") in found]
        experts = found.get(f"experts.{chunk}.{i}")
        choices.append(Choices(tuple(pools) or None, experts) if pools or experts is not None else None)
    tape.keep(tuple(carry), _tuple(choices))


def _tuple(choices: list[Choices | None]) -> LayerChoices:
    return tuple(choices)


def _extended(row: DsaRow, name: str, found: Mapping[str, Tensor]) -> DsaRow:
    latents, keys = row.latents.extend(found[f"latents.{name}"]), row.keys.extend(found[f"keys.{name}"])
    return DsaRow(latents, keys, row.open_k, row.open_gate)


def sum_tensors(tape: Tape) -> Named:
    """What the backward sweep has made so far: of the tokens it has still to visit, and of the carry."""
    named = [(f"leaving.{i}", t) for i, t in enumerate(tape.leaving or ()) if t is not None]
    for name, storage, length in _waiting(tape, tape.left):
        if storage.gradient is not None:
            named.append((name, storage.gradient[:length]))
    return named + _routing(tape)


def restore_sums(tape: Tape, left: int, found: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Put ``tape``, whose chunks are replayed, into the backward sweep with ``left`` chunks to do."""
    for name, storage, length in _waiting(tape, left):
        if storage.gradient is not None:
            storage.gradient[:length] = found[name]
    tape.leaving = [found.get(f"leaving.{i}") for i in range(about["leaves"])]
    if "router_counts" in found:
        tape.router_counts, tape.router_rows = found["router_counts"], int(found["router_rows"])
    tape.losses = Losses(**about["losses"])
    tape.choices += [None] * (tape.left - 1 - len(tape.choices))
    tape.left = left
    tape.seal()


def _routing(tape: Tape) -> Named:
    if tape.router_counts is None:
        return []
    return [("router_counts", tape.router_counts), ("router_rows", torch.tensor(tape.router_rows))]


def _waiting(tape: Tape, left: int) -> Iterator[tuple[str, Storage, int]]:
    """Storages with gradients, and how many of their rows chunks 0..left-1 have."""
    for i, layer in enumerate(tape.carries[left] if left else ()):
        if isinstance(layer, DsaCarry):
            for b, row in enumerate(layer.rows):
                yield f"d_latents.{i}.{b}", row.latents.storage, row.latents.length
                yield f"d_keys.{i}.{b}", row.keys.storage, row.keys.length
