"""KDA over the pieces of a chunk: affine maps side by side, then every piece from its own state.

A piece takes a state to A S + B (genoctx_kernels/kda/piece.py). Ranks exchange (A, B) of their pieces,
whose size does not depend on a piece's length, and each composes the states that enter its pieces and
leave the chunk. Backwards the gradient of the state goes through the same maps from last to first:
A^T d + b.

Letters: B rows, T tokens of this rank, H heads, K key width, V value width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from genoctx.model.parallel.pieces import PARTS, Pieces, in_order
from genoctx_kernels.kda import kda, piece_map, state_gradient

MAPS, GRADIENTS = "kda maps", "kda gradients"


def chain(maps_BHKX: Sequence[Tensor], state_BHKV: Tensor, *, back: bool = False) -> list[Tensor]:
    """States at the borders of the pieces, first border first; maps are [A | B] of every piece in order.

    ``back``: from the last border to the first, through A^T.
    """
    width = state_BHKV.shape[-2]
    found = [state_BHKV]
    for one in reversed(maps_BHKX) if back else maps_BHKX:
        a, b = one[..., :width], one[..., width:]
        found.append((a.mT if back else a) @ found[-1] + b)
    return found[::-1] if back else found


def _gathered(pieces: Pieces, maps: Sequence[tuple[Tensor, Tensor]], kind: str) -> list[Tensor]:
    """[A | B] of every piece in order, from this rank's (A, B)."""
    own = torch.stack([torch.cat(each, -1) for each in maps])
    return in_order([tuple(x) for x in pieces.group.gather(own, kind)])


class _Leave(torch.autograd.Function):
    """Outputs as they are, and the chunk's last state. Backwards: where the ranks' gradients meet.

    Per piece of this rank: output, last state and A; then q, k, g and beta of its first, and of its second.
    """

    @staticmethod
    def forward(
        ctx: Any, pieces: Pieces, state: Tensor, leaving: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.pieces = pieces
        ctx.save_for_backward(*tensors[2 * PARTS :])
        return *(out.view_as(out) for out in tensors[:PARTS]), leaving

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        *d_out, d_leaving = d_outs
        pieces, saved = ctx.pieces, ctx.saved_tensors
        a, qkgb = saved[:PARTS], (saved[PARTS : PARTS + 4], saved[PARTS + 4 :])
        own = [
            (a, state_gradient(q, k, g, beta, d))
            for a, (q, k, g, beta), d in zip(a, qkgb, d_out, strict=True)
        ]
        borders = chain(_gathered(pieces, own, GRADIENTS), d_leaving.to(own[0][0].dtype), back=True)
        d_last = (borders[piece + 1] for piece in pieces.own)
        return None, borders[0], None, *d_out, *d_last, *(None for _ in saved)


def kda_piece(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    pieces: Pieces,
) -> tuple[Tensor, Tensor]:
    """``kda`` of this rank's tokens where other ranks have other pieces of the chunk; also of no token.

    ``state_BHKV`` enters the chunk, alike on every rank. Returns the outputs of this rank's tokens and the
    state that leaves the chunk, alike on every rank to the last bit. Differentiable in all six tensors;
    the gradient of the entering state is whole on every rank.
    """
    inputs = list(zip(*map(pieces.split, (q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH)), strict=True))
    maps = [piece_map(k, v, g, beta) for _, k, v, g, beta in inputs]
    a_BHKK = [a.clone() for a, _ in maps]  # a view would keep B alive in the graph
    states = chain(_gathered(pieces, maps, MAPS), state_BHKV.detach())
    entering = [states[piece] for piece in pieces.own]
    made = [kda(q, k, v, g, beta, state) for (q, k, v, g, beta), state in zip(inputs, entering, strict=True)]
    outs, lasts = zip(*made, strict=True)
    qkgb = (x.detach() for q, k, _, g, beta in inputs for x in (q, k, g, beta))
    *outs, leaving = _Leave.apply(pieces, state_BHKV, states[-1], *outs, *lasts, *a_BHKK, *qkgb)
    return torch.cat(outs, 1), leaving
