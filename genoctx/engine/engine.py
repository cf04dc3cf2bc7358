"""The engine: one optimizer step over windows of any length, and scoring through the same forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds, refuse_without_targets
from genoctx.engine.bytes import total, window_needs
from genoctx.engine.group import TorchGroup
from genoctx.engine.homes import Homes
from genoctx.engine.journal import Journal
from genoctx.engine.movement import Movement
from genoctx.engine.optimizer import Optimizer
from genoctx.engine.stream import Losses, OnChunk, quiet, train_window, walk
from genoctx.errors import GenoctxError
from genoctx.model.carry import working_like
from genoctx.model.hybrid import Hybrid
from genoctx_kernels.loss import Nats, score_tokens


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step saw."""

    losses: Losses
    grad_norm: float
    """Before clipping."""


@dataclass(frozen=True)
class Scored:
    """Nats of one chunk of scored windows: positions start..end-1, arrays [B, end - start, letters]."""

    start: int
    end: int
    nats: Nats


@dataclass
class Engine:
    """Owns a model, how it is cut into chunks, and (for training) its optimizer."""

    model: Hybrid
    chunk: int
    coefficients: Coefficients = field(default_factory=Coefficients)
    group: TorchGroup | None = None
    """The ranks that share every window's chunks; each then has its share of losses and gradients."""
    homes: Homes | None = None
    """Where what a window keeps for long lies; by default where the weights are."""
    journal: Journal | None = None
    """Keeps an unfinished step, so that it goes on where it was interrupted."""

    def train_step(
        self,
        batches: list[Batch],
        optimizer: Optimizer,
        rate: float,
        on_chunk: OnChunk = quiet,
        movement: Movement | None = None,
        key: str = "",
    ) -> StepResult:
        """Gradients of all micro-batches over one global denominator, then one AdamW step.

        Raises InputError, before anything is computed, for a window without a target; and
        GenoctxError, leaving the weights alone, when the loss or the gradient is not finite.
        An exception from ``on_chunk`` leaves the weights alone too. ``movement`` watches the step. ``key`` says
        what it depends on, for the journal: a step of the same key goes on where it was interrupted.
        """
        per = self.denominators(batches)
        optimizer.zero_grad()
        try:
            losses = self.sweeps(batches, per, optimizer, on_chunk, key)
            norm = optimizer.grad_norm()
            if not math.isfinite(norm) or not math.isfinite(losses.nats):
                raise self.not_finite([name for batch in batches for name in batch.names])
            if movement is not None:
                movement.before(optimizer)
            optimizer.step(rate, norm)
            if self.journal is not None:
                self.journal.discard()
            if movement is not None:
                movement.after(optimizer)
        finally:
            optimizer.zero_grad()
        return StepResult(losses, norm)

    def not_finite(self, names: list[str]) -> GenoctxError:
        """The error for a step over the windows of ``names`` that would break the weights."""
        return GenoctxError(
            f"loss or gradient is not finite in {', '.join(names)}; the weights were left alone",
            "lower optim.lr or optim.clip_norm, or use stream.dtype = 'float32'",
        )

    def require_room(self, length: int, rows: int) -> None:
        """GenoctxError when a disk has no room for what ``rows`` windows of ``length`` tokens keep in files."""
        if self.homes is not None:
            dtype, keys = working_like(self.model.embed_tokens.weight).dtype, self.coefficients.indexer_kl > 0
            limits = bounds(length, self.chunk)
            self.homes.require(total(window_needs(self.model.config, limits, rows, dtype, indexer_kl=keys)))

    def denominators(self, batches: list[Batch]) -> Denominators:
        """What the losses of a step are divided by; InputError for a window without a target."""
        refuse_without_targets(batches)
        return Denominators.of(batches, self.model.config.index_kpool)

    def sweeps(
        self, batches: list[Batch], per: Denominators, optimizer: Optimizer, on_chunk: OnChunk, key: str
    ) -> Losses:
        """Both sweeps over every micro-batch: the gradients of the step and its losses."""
        first, losses = (0, Losses()) if self.journal is None else self.journal.begin(key, optimizer)
        for i, batch in enumerate(batches[first:], first):
            losses += train_window(
                self.model,
                batch,
                self.limits(batch),
                self.coefficients,
                per,
                on_chunk,
                homes=self.homes,
                journal=None if self.journal is None else self.journal.window(i, losses),
                group=self.group,
            )
        return losses

    def limits(self, batch: Batch) -> list[tuple[int, int]]:
        """Where windows are cut into chunks."""
        return bounds(batch.length, self.chunk)

    @property
    def first(self) -> bool:
        """Whether this process writes what is found."""
        return True

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, whole, as the model computes with it."""
        for name, parameter in sorted(self.model.named_parameters()):
            yield name, parameter.detach()

    def score_all(
        self,
        lengths: Sequence[int],
        read: Callable[[int], Batch],
        subset: Tensor,
        letters: int = 1,
        on_chunk: OnChunk = quiet,
    ) -> Generator[tuple[int, Scored]]:
        """Windows of ``lengths`` tokens, each read when its turn comes: (number, chunk), one after the other.

        The chunk that ends a window comes last. Where many ranks score, the first one gets everything.
        Close it (``contextlib.closing``), so that an error of whoever takes the chunks reaches all ranks.
        """
        for number in range(len(lengths)):
            for part in self.score(read(number), subset, letters, on_chunk):
                yield number, part

    @torch.no_grad()
    def score(
        self, batch: Batch, subset: Tensor, letters: int = 1, on_chunk: OnChunk = quiet
    ) -> Iterator[Scored]:
        """Nats of whole windows, chunk by chunk, one pass, no graph; ``subset`` as in ``score_tokens``."""
        for start, end, hidden in walk(self.model, batch, self.limits(batch), self.group):
            targets = batch.cut(start, end).targets_BT.to(hidden.device)
            rows, head = self.model.head(hidden.flatten(0, 1))
            flat = score_tokens(rows, head, targets.flatten(), subset.to(hidden.device), letters)
            yield Scored(start, end, Nats(*(n.unflatten(0, targets.shape).cpu() for n in flat)))
            on_chunk(targets.numel(), "score")
