"""``clamped_swiglu``: one autograd function that saves only the pre-activations.

Plain torch here; on a GPU the same in triton_swiglu.py. ``gated`` and ``d_gated`` are the two halves for callers that
are autograd functions themselves.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.dispatch import choose


def _clamps(gate: Tensor, up: Tensor, limit: float) -> bool:
    """Whether any value is beyond the limit (or undefined): two looks that spare many passes where none is."""
    if gate.numel() == 0:
        return False
    least, most = torch.aminmax(up)
    return not bool((gate.amax() <= limit) & (least >= -limit) & (most <= limit))


def gated(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clip(up, -limit, limit), outside autograd."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.clamp(max=limit), inplace=True).mul_(up.clamp(-limit, limit))


def d_gated(d_y: Tensor, gate_up: Tensor, limit: float) -> Tensor:
    """The gradient of ``gate_up``, outside autograd."""
    gate, up = gate_up.chunk(2, -1)
    clamps = _clamps(gate, up, limit)
    low, mid = (gate.clamp(max=limit), up.clamp(-limit, limit)) if clamps else (gate, up)
    d = torch.empty_like(gate_up)
    d_gate, d_up = d.chunk(2, -1)
    torch.mul(d_y, F.silu(low), out=d_up)
    d_gate.copy_(torch.ops.aten.silu_backward(d_y * mid, low))
    if clamps:
        d_gate.mul_(gate <= limit)
        d_up.mul_(up.abs() <= limit)
    return d


class _ClampedSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.limit = limit
        return gated(gate_up, limit)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        return d_gated(d_y, gate_up, ctx.limit), None


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clip(up, -limit, limit) for ``gate_up`` [..., 2 I]; result [..., I].

    Gradients are zero where a value is clamped. Source: spec section 2.9.
    """
    if choose("swiglu", gate_up).triton:
        from genoctx_kernels.swiglu.triton_swiglu import ClampedSwiglu

        return ClampedSwiglu.apply(gate_up, limit)
    return _ClampedSwiglu.apply(gate_up, limit)
