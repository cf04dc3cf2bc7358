"""Lengths as people write them: ``4096``, ``4k``, ``512k``, ``1M``, ``1000000bp``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from genoctx.errors import UsageError


class Size(NamedTuple):
    """Marks a config field, ``Annotated[int, Size()]``, that may be written ``"4k"`` or ``"1M"``."""


LARGEST = 10**15
"""Far beyond the largest known genome (1.6e11 bases)."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "bp": 1, "kb": 1000, "mb": 1_000_000, "gb": 10**9}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bases or tokens: ``k``, ``M``, ``G`` are powers of 1024; ``kb``, ``Mb``, ``bp`` are decimal."""
    match = _FORM.fullmatch(str(text).strip().replace("_", "").replace(",", ""))
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"{text!r} is not a size", "write it like 4096, 4k, 512k, 1M (=1,048,576) or 1000000bp"
        )
    value = Decimal(match[1]) * unit
    if value != int(value):
        raise UsageError(f"{text!r} is not a whole number", "write it like 4096, 4k, 512k, 1M or 1000000bp")
    if value > LARGEST:
        raise UsageError(
            f"{str(text)[:24]!r} is more than any genome has", "write it like 4096, 4k, 512k or 1M"
        )
    return int(value)


def format_size(n: int) -> str:
    """The shortest exact spelling: ``1M``, ``512k``, otherwise digits with separators."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if n and n % unit == 0:
            return f"{n // unit}{letter}"
    return f"{n:,}"
