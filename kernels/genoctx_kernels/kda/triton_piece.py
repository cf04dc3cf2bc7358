"""``piece.py`` on a GPU: the scans of triton_kda.py alone, without outputs and token gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.kda import triton_scan as across
from genoctx_kernels.kda.triton_kda import Inputs, prepare


def last_state(
    k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, state_BHKV: Tensor
) -> Tensor:
    """The state after the last token, float32 [B, H, K, V]."""
    k, v, g, beta = (x.contiguous() for x in (k_BTHK, v_BTHV, g_BTHK, beta_BTH))
    x = Inputs(k, k, v, g, beta)
    state = state_BHKV.float().contiguous().flatten(0, 1)
    for s in x.segments():
        state = prepare(x, s, state).last
    return state.view_as(state_BHKV)


def first_gradient(
    q_BTHK: Tensor, k_BTHK: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, d_out_BTHV: Tensor, d_last_BHKV: Tensor
) -> Tensor:
    """Gradient of the entering state, float32 [B, H, K, V]; depends on neither values nor states."""
    q, k, g, beta, d_out = (x.contiguous() for x in (q_BTHK, k_BTHK, g_BTHK, beta_BTH, d_out_BTHV.float()))
    x = Inputs(q, k, torch.zeros_like(d_out), g, beta)
    d_state = d_last_BHKV.float().contiguous().flatten(0, 1)
    zero = torch.zeros_like(d_state)
    for s in reversed(x.segments()):
        b = prepare(x, s, zero)
        d_u, d_states, entering = torch.empty_like(b.u), torch.empty_like(b.states), torch.empty_like(zero)
        parts = (b.w, b.q_in, b.k_out, b.p, b.decay)
        s.run(across.scan_back_kernel, "V", *parts, d_out, d_state, d_u, d_states, entering)
        d_state = entering
    return d_state.view_as(d_last_BHKV)
