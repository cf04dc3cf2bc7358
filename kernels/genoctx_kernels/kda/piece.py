"""What a piece of a sequence does to a state, before the state is known: for ranks side by side.

The state leaves a piece as S_out = A S_in + B, with A [K, K] and B [K, V] made of the piece's tokens
alone. The gradient goes back the same way: dS_in = A^T dS_out + b, with b the gradient of the entering
state when nothing follows the piece. So ranks that hold pieces of a sequence compute (A, B) and later b
side by side, exchange them, and start from the right state and the right gradient.

A and B are one scan over keys: the columns of the state never mix, so B is the last state of the scan
that starts from zero, and A the one that starts from the identity with values of zero.

Letters: B rows, T tokens, H heads, K key width, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.kda import chunked
from genoctx_kernels.kda.op import WIDEST_KEY, block_width, to_blocks
from genoctx_kernels.numerics import accumulator


def with_identity(v_BTHV: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Values with ``keys`` columns of zero behind them, and the state [0 | I] they start from."""
    batch, _, heads, width = v_BTHV.shape
    dtype = accumulator(v_BTHV.dtype)
    start = torch.zeros(batch, heads, keys, width + keys, dtype=dtype, device=v_BTHV.device)
    start[..., width:].diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return torch.nn.functional.pad(v_BTHV, (0, keys)), start


def _blocks(q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> chunked.Blocks:
    dtype, block = accumulator(k.dtype), block_width(k.shape[1], k.shape[3])
    q, k, g = (to_blocks(x, dtype, block) for x in (q, k, g))
    return chunked.prepare(q, k, g, to_blocks(beta.unsqueeze(-1), dtype, block).squeeze(-1))


def _triton(*tensors: Tensor) -> bool:
    unsupported = f"keys wider than {WIDEST_KEY}" if tensors[0].shape[-1] > WIDEST_KEY else ""
    return choose("kda_piece", *tensors, unsupported=unsupported).triton


@torch.no_grad()
def piece_map(k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor) -> tuple[Tensor, Tensor]:
    """(A [B, H, K, K], B [B, H, K, V]) of T >= 0 tokens; arguments as in ``kda``. Not differentiable.

    Computes in float32 (float64 for float64). Same result as ``reference.piece_map_reference``.
    """
    width = v_BTHV.shape[-1]
    v, start = with_identity(v_BTHV, k_BTHK.shape[-1])
    if not k_BTHK.shape[1]:
        last = start
    elif _triton(k_BTHK, v_BTHV, g_BTHK, beta_BTH):
        from genoctx_kernels.kda.triton_piece import last_state

        last = last_state(k_BTHK, v, g_BTHK, beta_BTH, start)
    else:
        b = _blocks(k_BTHK, k_BTHK, g_BTHK, beta_BTH)
        values = to_blocks(v, start.dtype, b.w.shape[2])
        last = chunked.scan(b, values, start.flatten(0, 1))[2].view_as(start)
    return last[..., width:], last[..., :width]


@torch.no_grad()
def state_gradient(
    q_BTHK: Tensor, k_BTHK: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, d_out_BTHV: Tensor
) -> Tensor:
    """b [B, H, K, V]: gradient of the state entering T >= 0 tokens, from that of their outputs alone."""
    batch, tokens, heads, key = k_BTHK.shape
    dtype, value = accumulator(k_BTHK.dtype), d_out_BTHV.shape[-1]
    nothing = torch.zeros(batch, heads, key, value, dtype=dtype, device=k_BTHK.device)
    if not tokens:
        return nothing
    if _triton(q_BTHK, k_BTHK, g_BTHK, beta_BTH, d_out_BTHV):
        from genoctx_kernels.kda.triton_piece import first_gradient

        return first_gradient(q_BTHK, k_BTHK, g_BTHK, beta_BTH, d_out_BTHV, nothing)
    b = _blocks(q_BTHK, k_BTHK, g_BTHK, beta_BTH)
    d_out = to_blocks(d_out_BTHV, dtype, b.w.shape[2])
    return chunked.scan_back(b, d_out, nothing.flatten(0, 1))[2].view_as(nothing)
