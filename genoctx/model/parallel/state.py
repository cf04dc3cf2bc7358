"""KDA over the pieces of a chunk: affine maps side by side, then every piece from its own state.

A piece takes a state to A S + B (genoctx_kernels/kda/piece.py). Ranks exchange (A, B), whose size does
not depend on the piece's length, and each composes the states that enter its piece and leave the chunk.
Backwards the gradient of the state goes through the same maps from last to first: A^T d + b.

Letters: B rows, T tokens of the piece, H heads, K key width, V value width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx.model.parallel.pieces import Group
from genoctx_kernels.kda import kda, piece_map, state_gradient

MAPS, GRADIENTS = "kda maps", "kda gradients"


def chain(maps_RBHKX: Tensor, state_BHKV: Tensor, *, back: bool = False) -> list[Tensor]:
    """States at the size + 1 borders of the pieces, first border first; maps are [A | B] of every rank.

    ``back``: from the last border to the first, through A^T.
    """
    width = state_BHKV.shape[-2]
    found = [state_BHKV]
    for one in maps_RBHKX.flip(0) if back else maps_RBHKX:
        a, b = one[..., :width], one[..., width:]
        found.append((a.mT if back else a) @ found[-1] + b)
    return found[::-1] if back else found


class _Leave(torch.autograd.Function):
    """Outputs as they are, and the chunk's last state. Backwards: where the ranks' gradients meet."""

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        last: Tensor,
        state: Tensor,
        leaving: Tensor,
        a: Tensor,
        group: Group,
        *qkgb: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, *qkgb)
        ctx.group = group
        return out.view_as(out), leaving

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_leaving: Tensor) -> tuple[Tensor | None, ...]:
        a, q, k, g, beta = ctx.saved_tensors
        own = torch.cat((a, state_gradient(q, k, g, beta, d_out)), -1)
        borders = chain(ctx.group.gather(own, GRADIENTS), d_leaving.to(own.dtype), back=True)
        return d_out, borders[ctx.group.rank + 1], borders[0], None, None, None, *(None for _ in range(4))


def kda_piece(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    group: Group,
) -> tuple[Tensor, Tensor]:
    """``kda`` where the ranks of ``group`` hold consecutive pieces, also of no token.

    ``state_BHKV`` enters the chunk, alike on every rank. Returns this piece's outputs and the state
    that leaves the chunk, alike on every rank to the last bit. Differentiable in all six tensors; the
    gradient of the entering state is whole on every rank.
    """
    a, b = piece_map(k_BTHK, v_BTHV, g_BTHK, beta_BTH)
    states = chain(group.gather(torch.cat((a, b), -1), MAPS), state_BHKV.detach())
    entering, leaving = states[group.rank], states[-1]
    out, last = kda(q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, entering)
    qkgb = (x.detach() for x in (q_BTHK, k_BTHK, g_BTHK, beta_BTH))
    out, leaving = _Leave.apply(out, last, state_BHKV, leaving, a, group, *qkgb)
    return out, leaving
