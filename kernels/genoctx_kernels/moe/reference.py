"""Routed experts as an equation (spec section 2.10), every expert on every token, ordinary autograd: the oracle.

out_m = sum_a weight_ma W_down_e silu(min(gate, limit)) clip(up, -limit, limit)     e = expert_ma, [gate; up] = W_e x_m
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.swiglu.reference import clamped_swiglu_reference


def routed_experts_reference(
    x_MD: Tensor, experts_MA: Tensor, weights_MA: Tensor, gate_up_EJD: Tensor, down_EDI: Tensor, limit: float
) -> Tensor:
    """``op.routed_experts``."""
    out = torch.zeros_like(x_MD)
    for e, (gate_up, down) in enumerate(zip(gate_up_EJD, down_EDI, strict=True)):
        share = (weights_MA * (experts_MA == e)).sum(1, keepdim=True).to(x_MD.dtype)
        out = out + share * (clamped_swiglu_reference(x_MD @ gate_up.T, limit) @ down.T)
    return out
