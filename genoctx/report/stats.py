"""Intervals for ratios of sums: blocks of a genome are resampled, never bases.

Bases near each other are alike, so a standard error over bases is several times too small. The unit
here is a block of consecutive bases (64 kb by default). Every number is a ratio of two sums over
blocks: bits per base is nats / (ln 2 x bases), divided once.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from genoctx.errors import InputError, UsageError
from genoctx.report.ledger import Ledger, with_contigs

LN2 = math.log(2)
MIN_BLOCKS = 8
"""Under this many blocks there is no interval."""
FEW_BLOCKS = 30
"""Up to this many blocks the interval comes from the t distribution."""
DRAWN_AT_A_TIME = 1 << 15
"""Blocks drawn at a time: what stays in the cache is several times faster."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A ledger's sums by block, sorted by contig and start; windows that share a block add up."""

    size: int
    """Bases per block."""
    contigs: tuple[str, ...]
    contig: np.ndarray
    """int64 [blocks]: index into ``contigs``."""
    start: np.ndarray
    """int64 [blocks]: first base of the block."""
    count: np.ndarray
    """int64 [blocks]: scored bases."""
    nats_full: np.ndarray
    """float64 [blocks]."""
    nats_acgt: np.ndarray
    """float64 [blocks]."""

    def __len__(self) -> int:
        return len(self.count)

    def nats(self, loss: str) -> np.ndarray:
        """The sums of the loss called ``full`` or ``acgt``."""
        return {"full": self.nats_full, "acgt": self.nats_acgt}[loss]

    def on(self, contig: int) -> Blocks:
        """The blocks of one contig."""
        here = self.contig == contig
        columns = (self.contig, self.start, self.count, self.nats_full, self.nats_acgt)
        return Blocks(self.size, self.contigs, *(column[here] for column in columns))


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


def blocks_of(ledger: Ledger, size: int) -> Blocks:
    """A ledger's rows summed into blocks of ``size`` bases, a multiple of its own (else UsageError)."""
    if size < ledger.block or size % ledger.block:
        raise UsageError(
            f"blocks of {size} bases cannot be made from the ledger's blocks of {ledger.block}",
            f"choose a multiple of {ledger.block}, such as --block {8 * ledger.block}",
        )
    key = np.stack([ledger.contig, ledger.block_start // size], axis=1)
    found, at = np.unique(key, axis=0, return_inverse=True)
    at = at.reshape(-1)
    count = np.zeros(len(found), dtype=np.int64)
    np.add.at(count, at, ledger.count)
    full, acgt = (
        np.bincount(at, weights, minlength=len(found))
        for weights in (ledger.nats_full_sum, ledger.nats_acgt_sum)
    )
    return Blocks(size, ledger.contigs, found[:, 0], found[:, 1] * size, count, full, acgt)


def difference_of_bases(a: Ledger, b: Ledger) -> str:
    """In what the scored windows, blocks and counts of two ledgers differ, in words; empty if in nothing."""
    if a.block != b.block:
        return f"blocks of {a.block} and of {b.block} bases"
    contigs = a.contigs + tuple(name for name in b.contigs if name not in a.contigs)
    x, y = (blocks_of(with_contigs(ledger, contigs), a.block) for ledger in (a, b))
    if not (np.array_equal(x.contig, y.contig) and np.array_equal(x.start, y.start)):
        return f"{len(x)} and {len(y)} blocks, not the same ones"
    unequal = np.flatnonzero(x.count != y.count)
    if len(unequal) == 0:
        return ""
    first = int(unequal[0])
    start = int(x.start[first])
    place = f"{contigs[x.contig[first]]}:{start + 1}-{start + a.block}"
    return f"{x.count[first]} and {y.count[first]} scored bases in {place}"


def require_same_bases(a: Ledger, b: Ledger) -> None:
    """Raise InputError unless both ledgers scored the same blocks and counts: only then are they paired."""
    if differs := difference_of_bases(a, b):
        raise InputError(
            f"the two ledgers scored different bases: {differs}", "evaluate both on the same windows"
        )


def bits(blocks: Blocks, nats: np.ndarray, sampling: Sampling) -> Estimate:
    """Bits per base of ``nats`` [blocks], which may also be a difference of two paired columns."""
    return ratio(nats, LN2 * blocks.count, blocks, sampling)


def ratio(numerator: np.ndarray, denominator: np.ndarray, blocks: Blocks, sampling: Sampling) -> Estimate:
    """Sum of ``numerator`` over sum of ``denominator``, both [blocks], with an interval over blocks.

    The draws depend on the blocks and the seed alone, so all columns over the same blocks are
    resampled together: a difference is paired.
    """
    n = len(blocks)
    value = math.fsum(numerator) / math.fsum(denominator)
    low = high = None
    method = "none"
    if n > FEW_BLOCKS:
        method = "bootstrap"
        low, high = _percentile_interval(numerator, denominator, strata(blocks), sampling)
    elif n >= MIN_BLOCKS:
        method = "t"
        residual = numerator - value * denominator
        error = math.sqrt(n / (n - 1) * math.fsum(residual**2)) / abs(math.fsum(denominator))
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


def _percentile_interval(
    numerator: np.ndarray, denominator: np.ndarray, groups: list[np.ndarray], sampling: Sampling
) -> tuple[float, float]:
    rng = np.random.default_rng(sampling.seed)
    sums = np.zeros((2, sampling.draws))
    for group in groups:
        columns = np.stack([numerator[group], denominator[group]])
        step = max(1, DRAWN_AT_A_TIME // len(group))
        for at in range(0, sampling.draws, step):
            draws = min(step, sampling.draws - at)
            chosen = rng.integers(0, len(group), size=(draws, len(group)))
            sums[:, at : at + draws] += columns.take(chosen, axis=1).sum(axis=2)
    tail = (1 - sampling.confidence) / 2
    low, high = np.quantile(sums[0] / sums[1], [tail, 1 - tail])
    return float(low), float(high)


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
