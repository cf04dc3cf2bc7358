"""KDA token by token: the equation itself, any dtype, ordinary autograd. The oracle of tests and bench.

Per head, with state S [K, V], key k_t, query q_t (already scaled), log-decay g_t <= 0, beta_t:

    S  <- Diag(exp g_t) S
    u  =  beta_t (v_t - S^T k_t)
    S  <- S + k_t u^T
    o_t = S^T q_t

Shapes: B batch, T tokens, H heads, K key width, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kda_reference(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, state_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, V] and the state after the last token [B, H, K, V]."""
    state = state_BHKV
    outputs = []
    for t in range(q_BTHK.shape[1]):
        k_BHK, q_BHK = k_BTHK[:, t], q_BTHK[:, t]
        state = state * g_BTHK[:, t].exp().unsqueeze(-1)
        error_BHV = v_BTHV[:, t] - torch.einsum("bhkv,bhk->bhv", state, k_BHK)
        u_BHV = beta_BTH[:, t].unsqueeze(-1) * error_BHV
        state = state + k_BHK.unsqueeze(-1) * u_BHV.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q_BHK))
    if not outputs:
        return v_BTHV.clone(), state
    return torch.stack(outputs, dim=1), state
