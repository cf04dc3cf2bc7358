"""Choosing parts of a model by name: the one rule of ``lora.targets``, ``train.trainable`` and ``train.freeze``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from genoctx.errors import ConfigError


def matches(name: str, pattern: str) -> bool:
    """Whether neighbouring parts of a dotted name match the parts of ``pattern``, each by shell wildcards.

    ``q_proj``, ``self_attn`` and ``layers.0`` all match ``layers.0.self_attn.q_proj.weight``.
    """
    parts, wanted = name.split("."), pattern.split(".")
    return any(
        all(fnmatchcase(part, glob) for part, glob in zip(parts[i:], wanted, strict=False))
        for i in range(len(parts) - len(wanted) + 1)
    )


def select(names: Iterable[str], patterns: Sequence[str], key: str, what: str) -> dict[str, list[str]]:
    """Names that each pattern matches, in their order; ConfigError for a pattern that matches none."""
    known = list(names)
    found = {pattern: [name for name in known if matches(name, pattern)] for pattern in patterns}
    for pattern, hits in found.items():
        if not hits:
            parts = sorted({part for name in known for part in name.split(".") if not part.isdigit()})
            close = get_close_matches(pattern, parts, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else f"there are, among others: {', '.join(parts[:12])}"
            )
            raise ConfigError(f"{key}: {pattern!r} matches {what}", hint)
    return found
