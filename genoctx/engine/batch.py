"""Windows side by side, as tensors, and the counts that every loss is divided by.

Letters: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from genoctx.errors import InputError


@dataclass(frozen=True)
class Batch:
    """One micro-batch. A window longer than a chunk is streamed; rows share one length."""

    tokens_BT: Tensor
    """int64 token ids."""
    targets_BT: Tensor
    """int64: the id that each position predicts, negative where there is none."""
    names: tuple[str, ...]
    """One name per row, for errors: ``chr5:1-524288``."""
    skip: tuple[int, ...] = ()
    """Left-padding tokens per row; empty means none."""
    share_BT: Tensor | None = None
    """float32: how much each target counts in the loss; None: once each."""

    def __post_init__(self) -> None:
        if not self.skip:
            object.__setattr__(self, "skip", (0,) * len(self.tokens_BT))

    @property
    def length(self) -> int:
        return self.tokens_BT.shape[1]

    def count_targets(self) -> int:
        return int((self.targets_BT >= 0).sum())

    def weigh_targets(self) -> float:
        """Sum of what the targets count: the denominator of the loss."""
        if self.share_BT is None:
            return float(self.count_targets())
        return float(self.share_BT[self.targets_BT >= 0].sum(dtype=torch.float64))

    def count_queries_with_pools(self, pool: int) -> int:
        """Queries whose indexer sees at least one complete pool: the denominator of the KL."""
        return sum(max(0, self.length - skip - (pool - 1)) for skip in self.skip)

    def cut(self, start: int, end: int) -> Batch:
        """Positions start..end-1, views, with what is left of the left padding."""
        here = slice(start, end)
        skip = tuple(min(max(0, s - start), end - start) for s in self.skip)
        share = None if self.share_BT is None else self.share_BT[:, here]
        return Batch(self.tokens_BT[:, here], self.targets_BT[:, here], self.names, skip, share)

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``; where it is there already, without a copy."""
        share = None if self.share_BT is None else self.share_BT.to(device)
        return Batch(self.tokens_BT.to(device), self.targets_BT.to(device), self.names, self.skip, share)


def joined(parts: Sequence[Batch]) -> Batch:
    """Stretches of one batch, one after the other; only padding may come before another's padding."""
    skips = zip(*(part.skip for part in parts), strict=True)
    shares = [part.share_BT for part in parts if part.share_BT is not None]
    return Batch(
        torch.cat([part.tokens_BT for part in parts], 1),
        torch.cat([part.targets_BT for part in parts], 1),
        parts[0].names,
        tuple(map(sum, skips)),
        torch.cat(shares, 1) if shares else None,
    )


def no_target(name: str) -> InputError:
    """The error for window ``name``, in which nothing can be predicted."""
    return InputError(
        f"window {name} has no base to predict: every target is N, IUPAC or masked",
        "cut the table again with a lower --max-n, or remove this row; loss.softmask = 0 masks lower case",
    )


def refuse_without_targets(batches: Iterable[Batch]) -> None:
    """InputError naming the first window in which nothing can be predicted."""
    for batch in batches:
        for name, row in zip(batch.names, batch.targets_BT, strict=True):
            if not bool((row >= 0).any()):
                raise no_target(name)


@dataclass(frozen=True)
class Coefficients:
    """Weights of the objectives beside the language-model loss; 0 switches one off."""

    balance: float = 0.0
    indexer_kl: float = 0.0


@dataclass(frozen=True)
class Denominators:
    """Sums over all micro-batches of one optimizer step, known before the first sweep."""

    weight: float
    """What all targets count together."""
    queries: int
    batches: int

    @classmethod
    def of(cls, batches: list[Batch], pool: int) -> Denominators:
        return cls(
            weight=sum(b.weigh_targets() for b in batches),
            queries=sum(b.count_queries_with_pools(pool) for b in batches),
            batches=len(batches),
        )


def bounds(length: int, chunk: int) -> list[tuple[int, int]]:
    """Half-open chunk limits covering ``length`` tokens; the last may be shorter."""
    return [(start, min(start + chunk, length)) for start in range(0, length, chunk)]


def stack_rows(rows: list[tuple[Tensor, Tensor, str]], shares: list[Tensor] | None = None) -> Batch:
    """A batch from (tokens, targets, name) rows of equal length, and what their targets count."""
    tokens, targets, names = zip(*rows, strict=True)
    share = None if shares is None else torch.stack(shares)
    return Batch(torch.stack(tokens), torch.stack(targets), names, share_BT=share)
