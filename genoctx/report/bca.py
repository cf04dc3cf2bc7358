"""Bias-corrected and accelerated bootstrap intervals (Efron 1987, Better Bootstrap Confidence Intervals)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()


def bca_interval(
    value: float, drawn: np.ndarray, influence: np.ndarray, groups: Sequence[np.ndarray], confidence: float
) -> tuple[float, float]:
    """The interval around ``value`` from ``drawn`` [draws] of the bootstrap.

    Percentiles are taken where the bias of the draws and the skewness of the blocks' ``influence`` [blocks]
    (the linear part of the value) put them; ``groups`` are the indices of blocks that are drawn together.
    """
    bias, skew = median_bias(value, drawn), acceleration(influence, groups)
    tail = (1 - confidence) / 2
    levels = [corrected_level(bias, skew, _NORMAL.inv_cdf(at)) for at in (tail, 1 - tail)]
    low, high = np.quantile(drawn, levels).tolist()
    return low, high


def corrected_level(bias: float, skew: float, z: float) -> float:
    """Which share of the draws lies below the bound of the normal quantile ``z``."""
    room = 1 - skew * (bias + z)
    return _NORMAL.cdf(bias + (bias + z) / room) if room > 0 else 1.0


def median_bias(value: float, drawn: np.ndarray) -> float:
    """z0: the normal quantile of the share of draws below ``value``, ties counting half."""
    draws = len(drawn)
    below = int((drawn < value).sum()) + int((drawn == value).sum()) / 2
    return _NORMAL.inv_cdf(min(max(below, 0.5), draws - 0.5) / draws)


def acceleration(influence: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """a: a sixth of the skewness of the sum of ``influence``, which is centred within ``groups``; 0 where it
    does not vary."""
    centred = np.concatenate([influence[group] - influence[group].mean() for group in groups])
    spread = math.fsum(centred**2)
    return math.fsum(centred**3) / (6 * spread**1.5) if spread > 0 else 0.0
