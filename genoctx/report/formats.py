"""Numbers and names as a report prints them, the same in every form."""

from __future__ import annotations

import math
from typing import Any

Estimate = dict[str, Any]
LOSSES = {"full": "full vocabulary", "acgt": "A, C, G, T only"}


def decimals(estimate: Estimate) -> int:
    """Digits behind the point that the interval supports: two of its half width, at least 3, at most 5."""
    if estimate["low"] is None:
        return 3
    half_width = (estimate["high"] - estimate["low"]) / 2
    return 5 if half_width <= 0 else min(5, max(3, 1 - math.floor(math.log10(half_width))))


def numbers(estimate: Estimate | None, most: int = 5) -> tuple[str, str]:
    """Value and interval as text, to at most ``most`` decimals; differences carry their sign."""
    if estimate is None:
        return "-", "-"
    form = f"{'+' if 'better' in estimate else ''}.{min(most, decimals(estimate))}f"
    value = f"{estimate['value']:{form}}"
    if estimate["low"] is None:
        return value, "-"
    return value, f"[{estimate['low']:{form}}, {estimate['high']:{form}}]"


def remark(estimate: Estimate) -> str:
    """What stands beside an interval, or in its place."""
    if "better" in estimate:
        return f"{estimate['better']} better, {estimate['worse']} worse"
    return {"t": "few blocks", "none": "too few blocks"}.get(estimate["method"], "")


METHODS = {"t": "Student's t", "bootstrap": "percentiles", "bca": "BCa"}


def interval(low: float | None, high: float | None) -> str:
    """Two bounds to the digits that their distance supports."""
    if low is None or high is None:
        return "-"
    digits = decimals({"low": low, "high": high})
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def chance(p: float) -> str:
    """A probability, never as zero."""
    return "< 1e-12" if p < 1e-12 else f"{p:.2g}"


def percent(estimate: Estimate) -> str:
    """A share with its interval."""
    text = f"{100 * estimate['value']:.1f} %"
    if estimate["low"] is not None:
        text += f" [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"
    return text


def said(value: Any) -> str:
    """A header's value as text; ``-`` for what is not there."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {said(each)}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_digest(header: dict[str, Any], key: str) -> str:
    """A path of a header and the digest of what lay there."""
    digest = header.get(f"{key}_digest")
    return said(header.get(key)) + (f" ({digest})" if digest else "")
