"""Intervals for ratios of sums: blocks of a genome are resampled, never bases.

Bases near each other are alike, so a standard error over bases is several times too small. The unit
here is a block of consecutive bases (64 kb by default). Every number is a ratio of two sums over
blocks: bits per base is nats / (ln 2 x bases), divided once.

How an interval is made depends on the number of blocks alone. Few blocks say too little about their own
distribution to resample it: Student's t. More of them give percentiles of the bootstrap. From ``BCA_BLOCKS`` on
these are corrected for bias and skewness (BCa), which is more exact where both can be estimated, and with fewer
blocks adds noise of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from genoctx.errors import UsageError
from genoctx.report.bca import bca_interval
from genoctx.report.blocks import Blocks
from genoctx.report.student import t_outside, t_quantile

LN2 = math.log(2)
MIN_BLOCKS = 8
"""Under this many blocks there is no interval."""
FEW_BLOCKS = 30
"""Up to this many blocks the interval comes from the t distribution."""
BCA_BLOCKS = 200
"""Over this many blocks the bootstrap is corrected for bias and skewness."""
DRAWN_AT_A_TIME = 1 << 15
"""Blocks drawn at a time: what stays in the cache is several times faster."""


@dataclass(frozen=True)
class Sampling:
    """How intervals are made: two-sided ``confidence``, bootstrap ``draws`` and their ``seed``."""

    confidence: float = 0.95
    draws: int = 2000
    seed: int = 0
    test: bool = False
    """Differences come with the probability of one as large by chance."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise UsageError(
                f"confidence {self.confidence} is not between 0.5 and 1", "try --confidence 0.95"
            )
        if self.draws < 100:
            raise UsageError(f"{self.draws} bootstrap draws are too few for an interval", "use at least 100")


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval. ``method`` is bca, bootstrap (percentiles), t, or none (``low`` and ``high`` are
    None)."""

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
    return _estimate(*_linear(numerator, denominator), (numerator, denominator), _quotient, blocks, sampling)


def _linear(numerator: np.ndarray, denominator: np.ndarray) -> tuple[float, np.ndarray]:
    """A ratio of sums, and what each block adds to it to first order: [blocks]."""
    value = math.fsum(numerator) / math.fsum(denominator)
    return value, (numerator - value * denominator) / abs(math.fsum(denominator))


def _quotient(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[0] / sums[1])


def standard_error(nats: np.ndarray, blocks: Blocks) -> float | None:
    """Of bits per base of ``nats`` [blocks], over blocks; None under ``MIN_BLOCKS`` of them."""
    return _error(_linear(nats, LN2 * blocks.count)[1]) if len(blocks) >= MIN_BLOCKS else None


def chance(nats: np.ndarray, blocks: Blocks) -> float | None:
    """The probability of bits per base as far from zero as those of ``nats`` [blocks], in either direction,
    if their expectation were zero: Student's t over blocks. None under ``MIN_BLOCKS`` blocks."""
    error = standard_error(nats, blocks)
    if error is None:
        return None
    value, _ = _linear(nats, LN2 * blocks.count)
    return t_outside(abs(value) / error, len(blocks) - 1) if error > 0 else float(value == 0)


def _error(residual: np.ndarray) -> float:
    """Standard error of a value whose linear part is ``residual`` [blocks]."""
    n = len(residual)
    return math.sqrt(n / (n - 1) * math.fsum(residual**2))


def intervals(nats: np.ndarray, blocks: Blocks, sampling: Sampling) -> dict[str, tuple[float, float]]:
    """Bits per base of ``nats`` [blocks] by every method that the number of blocks allows."""
    denominator = LN2 * blocks.count
    value, residual = _linear(nats, denominator)
    methods = [m for m, least in (("t", MIN_BLOCKS), ("bootstrap", FEW_BLOCKS + 1)) if len(blocks) >= least]
    methods += ["bca"] if len(methods) > 1 else []
    columns = (nats, denominator)
    return {m: _bounds(m, value, residual, columns, _quotient, blocks, sampling) for m in methods}


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
    method = "none"
    if n >= MIN_BLOCKS:
        method = "t" if n <= FEW_BLOCKS else "bootstrap" if n <= BCA_BLOCKS else "bca"
    low = high = None
    if method != "none":
        low, high = _bounds(method, value, residual, columns, of_sums, blocks, sampling)
    return Estimate(value, low, high, method, n, int(blocks.count.sum()))


def _bounds(
    method: str,
    value: float,
    residual: np.ndarray,
    columns: tuple[np.ndarray, ...],
    of_sums: Callable[[np.ndarray], np.ndarray],
    blocks: Blocks,
    sampling: Sampling,
) -> tuple[float, float]:
    if method == "t":
        reach = t_quantile(sampling.confidence, len(blocks) - 1) * _error(residual)
        return value - reach, value + reach
    groups = strata(blocks)
    drawn = of_sums(_resampled(np.stack(columns), groups, sampling))
    if method == "bca":
        return bca_interval(value, drawn, residual, groups, sampling.confidence)
    tail = (1 - sampling.confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail]).tolist()
    return low, high


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
