"""Inverse of I + A for strictly lower A, block by block: what a triangular solve does, in batched products.

Squares of ``NARROW`` tokens on the diagonal are inverted row by row, all of them side by side as columns;
neighbours are then joined: the inverse of [[X1, 0], [A21, X2]]^-1 has -X2 A21 X1 below its diagonal.
Row t of the result depends on rows up to t alone.

Letters: as in scores.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

NARROW = 8


def _by_rows(a_WWE: Tensor) -> Tensor:
    """Forward substitution for a few rows and many matrices."""
    out = torch.zeros_like(a_WWE)
    out.diagonal(dim1=0, dim2=1).fill_(1.0)
    for row in range(1, a_WWE.shape[0]):
        torch.sum(a_WWE[row, :row].unsqueeze(1) * out[:row, :row], 0, out=out[row, :row]).neg_()
    return out


def unit_lower_inverse(a_MNCC: Tensor) -> Tensor:
    """(I + A)^-1, [M, N, C, C], for C a power of two; A is read below its diagonal only."""
    block = a_MNCC.shape[-1]
    width = min(block, NARROW)
    grid_MNSWSW = a_MNCC.unflatten(-1, (-1, width)).unflatten(-3, (-1, width))
    squares_WWE = grid_MNSWSW.diagonal(dim1=2, dim2=4).permute(2, 3, 0, 1, 4).flatten(2)
    inverse = _by_rows(squares_WWE).permute(2, 0, 1).contiguous()
    while width < block:
        grid_MNSWSW = a_MNCC.unflatten(-1, (-1, width)).unflatten(-3, (-1, width))
        below = grid_MNSWSW[:, :, 1::2, :, 0::2].diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(0, 2)
        first, second = inverse[0::2], inverse[1::2]
        joined = inverse.new_zeros(len(first), 2 * width, 2 * width)
        joined[:, :width, :width] = first
        joined[:, width:, width:] = second
        joined[:, width:, :width] = torch.bmm(second, torch.bmm(below, first)).neg_()
        inverse, width = joined, 2 * width
    return inverse.view_as(a_MNCC)
