"""The engine: one optimizer step over windows of any length, and scoring through the same forward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds, refuse_without_targets
from genoctx.engine.optimizer import Optimizer
from genoctx.engine.stream import Losses, OnChunk, quiet, train_window, walk
from genoctx.errors import GenoctxError
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

    def train_step(
        self, batches: list[Batch], optimizer: Optimizer, rate: float, on_chunk: OnChunk = quiet
    ) -> StepResult:
        """Gradients of all micro-batches over one global denominator, then one AdamW step.

        Raises InputError, before anything is computed, for a window without a target; and
        GenoctxError, leaving the weights alone, when the loss or the gradient is not finite.
        An exception from ``on_chunk`` leaves the weights alone too.
        """
        refuse_without_targets(batches)
        per = Denominators.of(batches, self.model.config.index_kpool)
        losses = Losses()
        optimizer.zero_grad()
        try:
            for batch in batches:
                limits = bounds(batch.length, self.chunk)
                losses += train_window(self.model, batch, limits, self.coefficients, per, on_chunk)
            norm = optimizer.grad_norm()
            if not math.isfinite(norm) or not math.isfinite(losses.nats):
                names = ", ".join(name for batch in batches for name in batch.names)
                raise GenoctxError(
                    f"loss or gradient is not finite in {names}; the weights were left alone",
                    "lower optim.lr or optim.clip_norm, or use stream.dtype = 'float32'",
                )
            optimizer.step(rate, norm)
        finally:
            optimizer.zero_grad()
        return StepResult(losses, norm)

    @torch.no_grad()
    def score(
        self, batch: Batch, subset: Tensor, letters: int = 1, on_chunk: OnChunk = quiet
    ) -> Iterator[Scored]:
        """Nats of whole windows, chunk by chunk, one pass, no graph; ``subset`` as in ``score_tokens``."""
        for start, end, hidden in walk(self.model, batch, bounds(batch.length, self.chunk)):
            targets = batch.cut(start, end).targets_BT.to(hidden.device)
            head = self.model.lm_head.weight
            inputs = (hidden.flatten(0, 1), head, targets.flatten(), subset.to(hidden.device))
            flat = score_tokens(*inputs, letters)
            yield Scored(start, end, Nats(*(n.unflatten(0, targets.shape).cpu() for n in flat)))
            on_chunk(targets.numel(), "score")
