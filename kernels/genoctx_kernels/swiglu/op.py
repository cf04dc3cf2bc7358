"""``clamped_swiglu``: one autograd function that saves only the pre-activations.

Plain torch here; on a GPU the same in triton_swiglu.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.dispatch import choose


class _ClampedSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.limit = limit
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate.clamp(max=limit), inplace=True).mul_(up.clamp(-limit, limit))

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        limit = ctx.limit
        gate, up = gate_up.chunk(2, -1)
        low = gate.clamp(max=limit)
        d = torch.empty_like(gate_up)
        d_gate, d_up = d.chunk(2, -1)
        torch.mul(d_y, F.silu(low), out=d_up).mul_(up.abs() <= limit)
        d_gate.copy_(torch.ops.aten.silu_backward(d_y * up.clamp(-limit, limit), low)).mul_(gate <= limit)
        return d, None


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clip(up, -limit, limit) for ``gate_up`` [..., 2 I]; result [..., I].

    Gradients are zero where a value is clamped. Source: spec section 2.9.
    """
    if choose("swiglu", gate_up).triton:
        from genoctx_kernels.swiglu.triton_swiglu import ClampedSwiglu

        return ClampedSwiglu.apply(gate_up, limit)
    return _ClampedSwiglu.apply(gate_up, limit)
