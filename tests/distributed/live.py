"""Counts the tensors of this process that are alive at one time, by bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Live(TorchDispatchMode):
    """Bytes of all plain tensors that are alive and were made while this mode is on; ``peak`` over time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, op: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # it comes again for the local tensors
        found = op(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._note(tensor)
        self.peak = max(self.peak, self.bytes())
        return found

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        self._alive[reference.cdata] = (reference, storage.nbytes())

    def bytes(self) -> int:
        """Alive now."""
        self._alive = {key: (ref, size) for key, (ref, size) in self._alive.items() if not ref.expired()}
        return sum(size for _, size in self._alive.values())
