"""What goes into a layer and what goes along: chunks, carries, and the choices a layer made.

All of these are immutable values. The one thing that grows, the prefix of a DSA layer, is an
append-only storage with views of a fixed length: an older view never changes when the storage grows.

Letters: B rows (windows side by side), T tokens of a chunk, N residual streams, D hidden, S tokens
so far, R latent width, J pools so far, I index width, K pools kept, W convolution width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genoctx.model.parallel.pieces import Pieces

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Gives zeros of a shape and dtype, wherever its owner keeps such things."""


def working_like(weight: Tensor) -> Tensor:
    """An empty tensor on the device of ``weight`` and in the dtype that a layer works in.

    That is the weight's own, but where a sharded weight is gathered in another (genoctx/engine/sharding.py
    sets ``working_dtype`` on it).
    """
    dtype = getattr(weight, "working_dtype", weight.dtype)
    return torch.empty(0, dtype=dtype, device=weight.device)


class Storage:
    """Append-only rows of one sequence, with room for the gradient of every row.

    ``filled`` rows are defined; the rest are zeros. ``sealed`` storages belong to a finished forward
    sweep: extending a view of one moves along the recorded rows instead of writing.
    """

    def __init__(self, rows: Tensor) -> None:
        """``rows`` [capacity, width]: zeroed memory."""
        self.rows = rows
        self.filled = 0
        self.sealed = False
        self.gradient: Tensor | None = None


@dataclass(frozen=True)
class Prefix:
    """The first ``length`` rows of a storage."""

    storage: Storage
    length: int = 0

    @property
    def rows(self) -> Tensor:
        return self.storage.rows[: self.length]

    def recorded(self, rows: int) -> Prefix | None:
        """This prefix with the next ``rows`` rows of a finished forward sweep; None where there are none."""
        end = self.length + rows
        return Prefix(self.storage, end) if self.storage.sealed and end <= self.storage.filled else None

    def extend(self, new: Tensor, multiple: int = 1) -> Prefix:
        """This prefix followed by ``new`` [T, width]; capacity stays a multiple of ``multiple``."""
        if recorded := self.recorded(len(new)):
            return recorded
        storage, end = self.storage, self.length + len(new)
        if storage.sealed or self.length != storage.filled or end > len(storage.rows):
            storage = self._moved(end, multiple)
        storage.rows[self.length : end] = new.detach()
        storage.filled = end
        return Prefix(storage, end)

    def _moved(self, end: int, multiple: int) -> Storage:
        old = self.storage
        capacity = max(len(old.rows), -(-end * 5 // (4 * multiple)) * multiple)
        moved = Storage(old.rows.new_zeros(capacity, old.rows.shape[1]))
        moved.rows[: self.length] = self.rows
        return moved


@dataclass(frozen=True)
class KdaCarry:
    """Past of a KDA layer: raw projections before the convolution, and the recurrent state."""

    tails: tuple[Tensor, Tensor, Tensor]
    """q, k, v [B, W-1, H*K], oldest first."""
    state: Tensor
    """[B, H, K, V], float32 (float64 for float64)."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.tails, self.state)

    def replaced(self, tensors: tuple[Tensor, ...]) -> KdaCarry:
        return KdaCarry((tensors[0], tensors[1], tensors[2]), tensors[3])


@dataclass(frozen=True)
class DsaRow:
    """Past of one sequence in a DSA layer."""

    latents: Prefix
    keys: Prefix
    """Pooled index keys of all complete pools, summed in float32 and rounded once to the model's dtype."""
    open_k: Tensor
    """Index keys of the 0..P-1 tokens of the open pool, [o, I]."""
    open_gate: Tensor
    """Their pooling logits, [o, I]."""


@dataclass(frozen=True)
class DsaCarry:
    """Past of a DSA layer, one entry per row of the batch (rows may start at different tokens)."""

    rows: tuple[DsaRow, ...]

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for row in self.rows for t in (row.open_k, row.open_gate))

    def replaced(self, tensors: tuple[Tensor, ...]) -> DsaCarry:
        pairs = zip(self.rows, tensors[::2], tensors[1::2], strict=True)
        return DsaCarry(tuple(DsaRow(r.latents, r.keys, k, gate) for r, k, gate in pairs))


LayerCarry = KdaCarry | DsaCarry
Carry = tuple[LayerCarry, ...]
"""One entry per layer: everything a chunk needs from its past."""


@dataclass(frozen=True)
class Choices:
    """What one layer chose for one chunk; given back to it, the layer replays instead of choosing."""

    pools: tuple[Tensor, ...] | None = None
    """Per row int32 [real tokens, K], ascending pool ids, -1 unused (DSA layers)."""
    experts: Tensor | None = None
    """int16 [B*T, top], ascending (MoE layers)."""


@dataclass(frozen=True)
class Aux:
    """Sums of one chunk from which window-wide losses are made; they add up over chunks."""

    router_rows: int = 0
    router_counts: Tensor | None = None
    """int64 [E]: how often each expert is among the top of softmax(z)."""
    router_probs: Tensor | None = None
    """[E]: sum over tokens of softmax(z); carries the gradient."""
    kl: Tensor | None = None
    """float64: sum over queries of the indexer's KL; present only when a graph is built."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a window on its way through the layers."""

    x: Tensor
    """Residual streams [B, T, N, D]."""
    skip: tuple[int, ...]
    """Per row, how many leading tokens of this chunk are left padding."""
    choices: Choices | None = None
    aux: Aux = field(default_factory=Aux)
    pieces: Pieces | None = None
    """Where several ranks share a chunk: ``x`` is this rank's pieces, and these are everybody's."""

    def valid(self) -> Tensor | None:
        """bool [B, T], or None when no token is padding."""
        if not any(self.skip):
            return None
        start = torch.tensor(self.skip, device=self.x.device).unsqueeze(1)
        return torch.arange(self.x.shape[1], device=self.x.device) >= start
