"""Clamped SwiGLU as an equation: silu(min(gate, limit)) * clip(up, -limit, limit) (spec section 2.9)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def clamped_swiglu_reference(gate_up: Tensor, limit: float) -> Tensor:
    """``gate_up`` [..., 2 I]: gate first, then up. Returns [..., I]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
