"""The alternating normalisations of an n x n map, for T tokens side by side, and their way back.

Maps live as [n, n, T]: one operation on long contiguous rows serves all tokens, in place, and all that is
worked on (16 numbers a token) stays in the cache. Axis 0 is normalised first and last.

Backward needs no map of the way. With y = x / t and t = sum x + eps, dx = (dy - sum(dy y)) / t; so w = dy y
becomes w - y sum(w), and the map before is y t: two sweeps a step, no division. The totals t are n numbers
a token and step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _axis(step: int) -> int:
    """What normalisation ``step`` sums over: columns first and last, rows between."""
    return step % 2


def sinkhorn(soft_NNT: Tensor, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    """The map [n, n, T] of a softmax over axis 1, and the totals [2 iters - 1, n, T] it was divided by."""
    c = soft_NNT + eps
    totals_SNT = c.new_empty(2 * iters - 1, *c.shape[1:])
    for step, total in enumerate(totals_SNT.unbind()):
        torch.sum(c, _axis(step), out=total)
        c.div_(total.add_(eps).unsqueeze(_axis(step)))
    return c, totals_SNT


def sinkhorn_backward(
    w_NNT: Tensor, y_NNT: Tensor, totals_SNT: Tensor, soft_NNT: Tensor, eps: float
) -> Tensor:
    """Gradient of the softmax's logits [n, n, T] from w = dC C and the map y = C, which are used up."""
    summed = torch.empty_like(y_NNT[0])
    for step, total in reversed(list(enumerate(totals_SNT.unbind()))):
        axis = _axis(step)
        torch.sum(w_NNT, axis, out=summed)
        w_NNT.addcmul_(y_NNT, summed.unsqueeze(axis), value=-1)
        y_NNT.mul_(total.unsqueeze(axis))
    w_NNT.div_(soft_NNT + eps)
    return torch.ops.aten._softmax_backward_data(w_NNT, soft_NNT, 1, soft_NNT.dtype)
