"""``doctor --selftest``: streamed = whole on a model's own shape, at a length where selection is sparse."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from genoctx.engine.batch import Batch, Coefficients
from genoctx.engine.selftest import Comparison, compare
from genoctx.errors import WouldNotFit
from genoctx.model.block import Objectives
from genoctx.model.config import ModelConfig
from genoctx.model.count import count_parameters
from genoctx.model.hybrid import build
from genoctx.run.machine import available_memory

LIMIT = 1e-10


@dataclass(frozen=True)
class SelfTest:
    """What was compared, and how far apart it was."""

    tokens: int
    chunks: int
    comparison: Comparison

    @property
    def passed(self) -> bool:
        return self.comparison.gradient <= LIMIT and self.comparison.loss <= LIMIT


def selftest(config: ModelConfig, seed: int = 0) -> SelfTest:
    """All gradients in float64, streamed in ragged chunks against one ordinary backpropagation.

    The window is longer than ``index_topk``, so that the indexer has something to leave out. Balance
    loss and sparse indexer KL are on. Raises WouldNotFit for a model too large for this machine.
    """
    tokens = config.index_topk * 3 // 2 + 2 * config.index_kpool + 37
    needed = 8 * (
        3 * count_parameters(config) + 400 * tokens * config.hidden_size * config.num_hidden_layers // 8
    )
    if needed > available_memory():
        raise WouldNotFit(
            f"the selftest of this shape needs about {needed / 2**30:.0f} GiB in float64, "
            f"{available_memory() / 2**30:.0f} GiB are free",
            "test a preset with the same layers but smaller widths: genoctx doctor --selftest --preset nano",
        )
    model = build(
        config, dtype=torch.float64, objectives=Objectives(balance=True, kl_mode="sparse"), seed=seed
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # fresh gates and biases are constants, which would hide mistakes
        for p in model.parameters():
            p.add_(
                0.1 * p.abs().mean().clamp_min(0.1) * torch.randn(p.shape, generator=generator, dtype=p.dtype)
            )
    ids = torch.randint(0, min(5, config.vocab_size), (1, tokens), generator=generator)
    targets = torch.roll(ids, -1, 1)
    targets[:, -1] = -100
    targets[:, tokens // 3 : tokens // 2] = -100
    edges = [0, 1, tokens // 5, tokens // 3 + 1, tokens // 2 + 2, tokens - 3, tokens]
    bounds = list(pairwise(edges))
    batch = Batch(ids, targets, ("selftest",))
    return SelfTest(tokens, len(bounds), compare(model, [batch], [bounds], Coefficients(0.01, 0.1)))
