"""Intervals for ratios of sums: blocks of a genome are resampled, never bases.

Bases near each other are alike, so a standard error over bases is several times too small. The unit
here is a block of consecutive bases (64 kb by default). Every number is a ratio of two sums over
blocks: bits per base is nats / (ln 2 x bases), divided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from genoctx.errors import UsageError
from genoctx.report.blocks import Blocks

LN2 = math.log(2)
MIN_BLOCKS = 8
"""Under this many blocks there is no interval."""
FEW_BLOCKS = 30
"""Up to this many blocks the interval comes from the t distribution."""
DRAWN_AT_A_TIME = 1 << 15
"""Blocks drawn at a time: what stays in the cache is several times faster."""


@dataclass(frozen=True)
class Sampling:
    """How intervals are made: two-sided ``confidence``, bootstrap ``draws`` and their ``seed``."""

    confidence: float = 0.95
    draws: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise UsageError(
                f"confidence {self.confidence} is not between 0.5 and 1", "try --confidence 0.95"
            )
        if self.draws < 100:
            raise UsageError(f"{self.draws} bootstrap draws are too few for an interval", "use at least 100")


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval. ``method`` is bootstrap, t, or none (``low`` and ``high`` are None)."""

    value: float
    low: float | None
    high: float | None
    method: str
    blocks: int
    bases: int

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def bits(blocks: Blocks, nats: np.ndarray, sampling: Sampling) -> Estimate:
    """Bits per base of ``nats`` [blocks], which may also be a difference of two paired columns."""
    return ratio(nats, LN2 * blocks.count, blocks, sampling)


def ratio(numerator: np.ndarray, denominator: np.ndarray, blocks: Blocks, sampling: Sampling) -> Estimate:
    """Sum of ``numerator`` over sum of ``denominator``, both [blocks], with an interval over blocks.

    The draws depend on the blocks and the seed alone, so all columns over the same blocks are
    resampled together: a difference is paired.
    """
    value = math.fsum(numerator) / math.fsum(denominator)
    residual = (numerator - value * denominator) / abs(math.fsum(denominator))

    def of_sums(sums: np.ndarray) -> np.ndarray:
        return np.asarray(sums[0] / sums[1])

    return _estimate(value, residual, (numerator, denominator), of_sums, blocks, sampling)


def bits_apart(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], blocks: Blocks, sampling: Sampling
) -> Estimate:
    """Bits per base of a minus those of b, each (nats, scored bases) [blocks]: paired by block where the two
    differ in a few scored bases."""
    (nats_a, count_a), (nats_b, count_b) = a, b
    total_a, total_b = LN2 * count_a.sum(), LN2 * count_b.sum()
    of_a, of_b = math.fsum(nats_a) / total_a, math.fsum(nats_b) / total_b
    residual = (nats_a - of_a * LN2 * count_a) / total_a - (nats_b - of_b * LN2 * count_b) / total_b

    def of_sums(sums: np.ndarray) -> np.ndarray:
        return np.asarray((sums[0] / sums[1] - sums[2] / sums[3]) / LN2)

    return _estimate(of_a - of_b, residual, (nats_a, count_a, nats_b, count_b), of_sums, blocks, sampling)


def _estimate(
    value: float,
    residual: np.ndarray,
    columns: tuple[np.ndarray, ...],
    of_sums: Callable[[np.ndarray], np.ndarray],
    blocks: Blocks,
    sampling: Sampling,
) -> Estimate:
    """``value`` with its interval: ``residual`` [blocks] is its linear part, for Student's t; ``of_sums``
    makes it of resampled sums [columns, draws]."""
    n = len(blocks)
    low = high = None
    method = "none"
    if n > FEW_BLOCKS:
        method = "bootstrap"
        drawn = of_sums(_resampled(np.stack(columns), strata(blocks), sampling))
        tail = (1 - sampling.confidence) / 2
        low, high = map(float, np.quantile(drawn, [tail, 1 - tail]))
    elif n >= MIN_BLOCKS:
        method = "t"
        error = math.sqrt(n / (n - 1) * math.fsum(residual**2))
        reach = t_quantile(sampling.confidence, n - 1) * error
        low, high = value - reach, value + reach
    return Estimate(value, low, high, method, n, int(blocks.count.sum()))


def strata(blocks: Blocks) -> list[np.ndarray]:
    """Indices of the blocks that replace each other: those of one contig.

    Contigs with fewer than 8 blocks form one stratum together: alone they would hardly vary.
    """
    groups = [np.flatnonzero(blocks.contig == contig) for contig in np.unique(blocks.contig)]
    small = [group for group in groups if len(group) < MIN_BLOCKS]
    large = [group for group in groups if len(group) >= MIN_BLOCKS]
    return large + ([np.concatenate(small)] if small else [])


def _resampled(columns: np.ndarray, groups: list[np.ndarray], sampling: Sampling) -> np.ndarray:
    """Sums over drawn blocks of ``columns`` [columns, blocks]: [columns, draws]."""
    rng = np.random.default_rng(sampling.seed)
    sums = np.zeros((len(columns), sampling.draws))
    for group in groups:
        of_group = columns[:, group]
        step = max(1, DRAWN_AT_A_TIME // len(group))
        for at in range(0, sampling.draws, step):
            draws = min(step, sampling.draws - at)
            chosen = rng.integers(0, len(group), size=(draws, len(group)))
            sums[:, at : at + draws] += of_group.take(chosen, axis=1).sum(axis=2)
    return sums


def better_and_worse(difference: np.ndarray) -> tuple[int, int]:
    """How many blocks went down (better) and up (worse) by ``difference`` in nats."""
    return int((difference < 0).sum()), int((difference > 0).sum())


def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = ``confidence`` for ``freedom`` degrees of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _t_inside(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _t_inside(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) tan(angle)); Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    series = term if freedom > 1 else 0.0
    for i in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (i - 1) / i
        series += term
    return 2 / math.pi * (angle + sine * series) if odd else sine * series
