"""Homes: where what a window keeps for long lives. Exact slabs, so that the heap never fragments.

Chunk after chunk leaves small things behind (carries, ids) between large temporaries. Each kind gets
one slab, allocated once at the size the whole window needs.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor


class Slabs:
    """Append-only storage by key; every tensor put comes back as a view of its key's slab."""

    def __init__(self) -> None:
        self._slabs: dict[Hashable, Tensor] = {}
        self._used: dict[Hashable, int] = {}

    def put(self, key: Hashable, tensor: Tensor, capacity: int) -> Tensor:
        """Copy ``tensor`` behind what ``key`` holds; ``capacity`` elements are reserved at first use."""
        if key not in self._slabs:
            self._slabs[key] = torch.empty(capacity, dtype=tensor.dtype, device=tensor.device)
            self._used[key] = 0
        start = self._used[key]
        end = start + tensor.numel()
        if end > len(self._slabs[key]):
            raise ValueError(f"slab {key} holds {len(self._slabs[key])} elements, {end} are needed")
        self._used[key] = end
        view = self._slabs[key][start:end].view(tensor.shape)
        view.copy_(tensor.detach())
        return view

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self._slabs.values())
