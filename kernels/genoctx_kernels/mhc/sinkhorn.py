"""The alternating normalisations of an n x n map, for T tokens side by side, and their way back.

Maps live as [n, n, T]: one operation on long contiguous rows serves all tokens, in place, and all that is
worked on (16 numbers a token) stays in the cache. Axis 0 is normalised first and last.

Backward stores no map. With y = x / t and t = sum x + eps, dx = (dy - sum(dy y)) / t; so w = dy y becomes
w - y sum(w), and the map before is y t: two sweeps a step, no division. The totals t (n numbers a token
and step) are computed again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _axes(iters: int) -> list[int]:
    """Of each normalisation in turn: columns, then (rows, columns) ``iters - 1`` times."""
    return [0] + [1, 0] * (iters - 1)


def sinkhorn(soft_NNT: Tensor, iters: int, eps: float, totals_SNT: Tensor | None = None) -> Tensor:
    """The map [n, n, T] of a softmax over axis 1. Fills ``totals_SNT`` [2 iters - 1, n, T] when given."""
    c = soft_NNT + eps
    total = torch.empty_like(c[0])
    for step, axis in enumerate(_axes(iters)):
        if totals_SNT is not None:
            total = totals_SNT[step]
        torch.sum(c, axis, out=total).add_(eps)
        c.div_(total.unsqueeze(axis))
    return c


def sinkhorn_backward(d_c_NNT: Tensor, soft_NNT: Tensor, iters: int, eps: float) -> Tensor:
    """Gradient of the softmax's logits [n, n, T] from that of the map."""
    totals_SNT = soft_NNT.new_empty(2 * iters - 1, *soft_NNT.shape[1:])
    y = sinkhorn(soft_NNT, iters, eps, totals_SNT)
    w, summed = d_c_NNT * y, torch.empty_like(y[0])
    for step, axis in reversed(list(enumerate(_axes(iters)))):
        torch.sum(w, axis, out=summed)
        w.addcmul_(y, summed.unsqueeze(axis), value=-1)
        y.mul_(totals_SNT[step].unsqueeze(axis))
    w.div_(soft_NNT + eps)
    return torch.ops.aten._softmax_backward_data(w, soft_NNT, 1, soft_NNT.dtype)
