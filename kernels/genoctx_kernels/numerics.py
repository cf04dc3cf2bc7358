"""The one dtype rule of every op: float32 inside, or float64 when the caller is in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """dtype for states, maps, softmax statistics and gradient sums of an op fed with ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def up(x: Tensor) -> Tensor:
    """``x`` in its accumulator dtype; no copy when it is there already."""
    return x.to(accumulator(x.dtype))
