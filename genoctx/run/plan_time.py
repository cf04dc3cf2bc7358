"""Seconds of one window, as a range: arithmetic at two rates, and bytes over links.

The slow end is calibrated on the one published run of this model: 24,900 tokens/s at 256K and 13,700 at 1M on 64
B200. Two figures fix two rates, one of the indexer and one of everything else; both are far below what the device
can do, and other devices are taken to reach the same shares of their peaks. Nothing overlaps.
The fast end is the best published utilisation of long-context training (45 % of peak: SlimPipe, arXiv
2504.14519, a dense model), transfers hidden behind the arithmetic. A real run lies between.
"""

from __future__ import annotations

from dataclasses import dataclass

from genoctx.model.config import ModelConfig
from genoctx.run.devices import DEVICES, TFLOPS, Device
from genoctx.run.plan_flops import CHECKPOINTED, Flops, Work, forward_flops

PUBLISHED = ((262_144, 24_900.0), (1_048_576, 13_700.0))
"""Tokens of a window and tokens/s of the published run."""
PUBLISHED_ON = ("b200", 64)
BEST_SHARE = 0.45
"""Of peak."""

CPU_TRUNK = (12e9, 45e9)
"""FLOP/s of one core on products as small as a CPU model's, slow and fast: nano made 20 to 25 (docs/memory.md)."""
CPU_INDEXER = (15e9, 60e9)
"""The same for the indexer's scores and top-k: nano made 35."""


@dataclass(frozen=True)
class Range:
    """Seconds: between the fast and the slow end."""

    fast: float
    slow: float

    def __add__(self, other: Range) -> Range:
        return Range(self.fast + other.fast, self.slow + other.slow)

    def times(self, factor: float) -> Range:
        return Range(self.fast * factor, self.slow * factor)


@dataclass(frozen=True)
class Shares:
    """Shares of a device's bfloat16 peak."""

    trunk: float
    indexer: float


def published_shares() -> Shares:
    """The two rates that explain both published throughputs, as shares of the device's peak."""
    name, count = PUBLISHED_ON
    device, model = DEVICES[name], ModelConfig()
    (short, at_short), (long, at_long) = PUBLISHED
    a, b = forward_flops(model, short), forward_flops(model, long)
    t_a, t_b = count / at_short, count / at_long  # device-seconds a token
    trunk_a, trunk_b = (CHECKPOINTED.trunk * (f.total - f.indexer) for f in (a, b))
    index_a, index_b = (CHECKPOINTED.indexer * f.indexer for f in (a, b))
    # t = trunk / rate + indexer / rate, twice
    determinant = trunk_a * index_b - trunk_b * index_a
    per_trunk = (t_a * index_b - t_b * index_a) / determinant
    per_index = (trunk_a * t_b - trunk_b * t_a) / determinant
    return Shares(1 / per_trunk / device.gemm, 1 / per_index / device.gemm)


def arithmetic(work: Work, flops: Flops, tokens: float, device: Device | None, cores: int) -> Range:
    """Seconds of ``tokens`` on one device, or on ``cores`` cores of this processor."""
    trunk = work.trunk * (flops.total - flops.indexer) * tokens
    index = work.indexer * flops.indexer * tokens
    if device is None:
        fast, slow = (trunk / (CPU_TRUNK[i] * cores) + index / (CPU_INDEXER[i] * cores) for i in (1, 0))
        return Range(fast, slow)
    shares = published_shares()
    return Range(
        (trunk + index) / (BEST_SHARE * device.gemm),
        trunk / (shares.trunk * device.gemm) + index / (shares.indexer * device.gemm),
    )


def combine(compute: Range, transfers: list[float]) -> Range:
    """Everything at once at best, one after the other at worst."""
    return Range(max([compute.fast, *transfers]), compute.slow + sum(transfers))


def published_rates() -> tuple[float, float]:
    """TFLOP/s per B200 of the trunk and of the indexer in the published run."""
    shares, peak = published_shares(), DEVICES[PUBLISHED_ON[0]].gemm
    return shares.trunk * peak / TFLOPS, shares.indexer * peak / TFLOPS
