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


def piece_map_reference(
    k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor
) -> tuple[Tensor, Tensor]:
    """(A [B, H, K, K], B [B, H, K, V]) with S_out = A S_in + B, token by token.

    One token is S <- (I - beta k k^T) Diag(exp g) S + beta k v^T.
    """
    eye = torch.eye(k_BTHK.shape[-1], dtype=k_BTHK.dtype, device=k_BTHK.device)
    a = eye.expand(k_BTHK.shape[0], k_BTHK.shape[2], -1, -1)
    b = k_BTHK.new_zeros(*a.shape[:-1], v_BTHV.shape[-1])
    for t in range(k_BTHK.shape[1]):
        k, decay = k_BTHK[:, t].unsqueeze(-1), g_BTHK[:, t].exp().unsqueeze(-1)
        beta = beta_BTH[:, t, :, None, None]
        step = (eye - beta * k @ k.mT) * decay.mT
        a, b = step @ a, step @ b + beta * k @ v_BTHV[:, t].unsqueeze(-2)
    return a, b
