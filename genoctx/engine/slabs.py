"""Slabs: exact memory for what chunk after chunk leaves behind, so that the heap never fragments.

Each kind of thing gets one slab, allocated in its home before the first chunk, at the size the whole
window needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import Tensor

from genoctx.engine.bytes import Key, Need
from genoctx.engine.homes import Homes


class Slabs:
    """Append-only storage by key; every tensor put comes back as a view of its key's slab."""

    def __init__(self, homes: Homes, needs: Iterable[Need]) -> None:
        """Reserve all of ``needs`` (flat shapes). GenoctxError when a disk has no room."""
        self._homes = homes
        self._needs = {need.key: need for need in needs}
        self._slabs = {n.key: homes[n.category].allocate(n.shape, n.dtype) for n in self._needs.values()}
        self._used = dict.fromkeys(self._slabs, 0)

    def put(self, key: Key, tensor: Tensor) -> Tensor:
        """Copy ``tensor`` behind what ``key`` holds. ValueError when it has no room or another dtype."""
        slab, start = self._slabs[key], self._used[key]
        end = start + tensor.numel()
        if end > len(slab) or tensor.dtype != slab.dtype:
            raise ValueError(
                f"slab {key} holds {len(slab)} {slab.dtype}; {end} {tensor.dtype} do not go into it"
            )
        self._used[key] = end
        place = slab[start:end].view(tensor.shape)
        self._homes[self._needs[key].category].store(place, tensor.detach())
        return place

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes by category."""
        sums: Counter[str] = Counter()
        for key, slab in self._slabs.items():
            sums[self._needs[key].category] += slab.nbytes
        return dict(sums)
