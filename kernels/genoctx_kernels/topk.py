"""Top-k under a total order: value descending, then column ascending, the same on every backend."""

from __future__ import annotations

import torch
from torch import Tensor


def _first_ties(values: Tensor, threshold: Tensor, keep: int) -> Tensor:
    """Columns of exactly ``keep`` entries a row: all above the threshold, then the first equal ones."""
    above = values > threshold
    equal = values == threshold
    room = keep - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    return torch.nonzero(chosen)[:, 1].view(len(values), keep)


def best_columns(values_NM: Tensor, keep: int) -> Tensor:
    """Ascending columns, int64 [N, keep], of the ``keep`` largest entries of every row.

    Among equal values earlier columns win, where ``torch.topk`` alone would pick any.
    """
    if keep >= values_NM.shape[1]:
        return torch.arange(values_NM.shape[1], device=values_NM.device).expand(len(values_NM), -1)
    # one more than wanted, unsorted: the worst of them goes, unless others equal it
    top, columns = values_NM.topk(keep + 1, dim=-1, sorted=False)
    threshold = top.amin(-1, keepdim=True)
    worst = top == threshold
    columns = columns.masked_fill_(worst, values_NM.shape[1]).sort(1).values[:, :keep]
    tied = torch.nonzero(worst.sum(-1) > 1).squeeze(-1)
    if len(tied):
        columns[tied] = _first_ties(values_NM[tied], threshold[tied], keep)
    return columns
