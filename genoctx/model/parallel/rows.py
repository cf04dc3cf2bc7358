"""Latents and pooled keys of a chunk, from the rank that has them to all, and their gradients back.

Every rank holds the whole prefix, since a query may select any pool. Its gradient buffer takes in what
this rank's queries say; the sum over ranks is made once, for the rows of a chunk, when that chunk is
backpropagated, and goes to the rank that has the tokens.

Letters: T rows of this rank, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx.model.carry import Prefix, Storage
from genoctx.model.parallel.pieces import RowPieces


class _Own(torch.autograd.Function):
    """This rank's rows; the gradient is read from the buffers of all ranks, not from what arrives."""

    @staticmethod
    def forward(ctx: Any, own_TW: Tensor, storage: Storage, first: int, at: RowPieces, kind: str) -> Tensor:
        ctx.place = (storage, first, at, kind)
        return own_TW.view_as(own_TW)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None, None, None, None]:
        storage, first, at, kind = ctx.place
        if storage.gradient is None:
            raise ValueError(f"{kind} of a chunk in pieces need the storage's gradient buffer")
        rows = storage.gradient[first : first + sum(at.counts)]
        total = at.sum_own(rows.to(arriving.device), f"{kind} gradient")
        return total.to(arriving.dtype), None, None, None, None


def extend(
    prefix: Prefix, own_TW: Tensor, at: RowPieces, kind: str, multiple: int = 1
) -> tuple[Prefix, Tensor]:
    """``prefix`` followed by the rows of all ranks, and this rank's rows, where autograd continues.

    Rows that a forward sweep has recorded are not sent again. In backward the whole gradient of
    ``own_TW`` is the sum of all ranks' gradient buffers at its rows: whatever uses these rows adds there.
    """
    longer = prefix.recorded(sum(at.counts))
    if longer is None:
        own = own_TW.detach().to(prefix.storage.rows.dtype)  # what is kept is what is sent
        longer = prefix.extend(at.gather(own, kind), multiple)
    return longer, _Own.apply(own_TW, longer.storage, prefix.length, at, kind)
