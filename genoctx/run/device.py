"""Where a model runs: ``auto`` takes a GPU where torch sees one."""

from __future__ import annotations

import torch

from genoctx.errors import UsageError


def choose_device(name: str) -> torch.device:
    """The device for ``auto``, ``cpu`` or ``cuda``. UsageError for a GPU that is not there."""
    there = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if there else "cpu")
    if name == "cuda" and not there:
        raise UsageError(
            "torch sees no GPU",
            "see genoctx doctor; stream.device = 'auto' takes the CPU where there is none",
        )
    return torch.device(name)
