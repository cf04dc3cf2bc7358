"""Student's t without a library: how much of it lies outside, and its quantiles."""

from __future__ import annotations

import math

_TERMS = 500
_TINY = 1e-300


def t_outside(t: float, freedom: int) -> float:
    """P(|T| > ``t``) for ``freedom`` degrees of freedom, to about ten digits also where it is tiny.

    The regularised incomplete beta function I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2);
    Abramowitz and Stegun 26.7.1 and 26.5.8.
    """
    a, x = freedom / 2, freedom / (freedom + t * t)
    y = t * t / (freedom + t * t)
    if y == 0:
        return 1.0
    logarithm = math.lgamma(a + 0.5) - math.lgamma(a) - math.lgamma(0.5) + a * math.log(x) + 0.5 * math.log(y)
    front = math.exp(logarithm)
    if x < (a + 1) / (a + 2.5):
        return front * _fraction(a, 0.5, x) / a
    return 1 - 2 * front * _fraction(0.5, a, y)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, from its front (Lentz's way)."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            value *= d * c
        if abs(value - before) <= 1e-15 * abs(value):
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = ``confidence`` for ``freedom`` degrees of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_outside(math.sqrt(freedom) * math.tan(middle), freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)
