"""Host memory beside a GPU: pinned slabs of exact size, and a side stream that carries things to and fro.

torch's own pinned allocator rounds up to powers of two, nearly twice the bytes in the worst case; here
anonymous memory of the exact size is registered with the driver instead.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genoctx.errors import GenoctxError

Arrival = Callable[[], list[Tensor]]
"""Waits for what was sent for, and gives it."""


class _Locked(mmap.mmap):
    """Anonymous memory, page-locked until the last tensor over it is gone."""

    address = 0

    def __del__(self) -> None:
        if self.address:
            torch.cuda.cudart().cudaHostUnregister(self.address)


def pinned_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in pinned host memory of exact size. GenoctxError when the driver refuses."""
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    memory = _Locked(-1, count * dtype.itemsize)
    tensor = torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
    status = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if status:
        raise GenoctxError(
            f"the driver refuses to pin {tensor.nbytes:,} bytes of host memory (CUDA error {status})",
            "raise the limit on locked memory (ulimit -l), or use homes on 'file'",
        )
    memory.address = tensor.data_ptr()
    return tensor


class Courier:
    """Copies between a GPU and the host on a stream of its own, so that they overlap with computing.

    Everything goes through one stream and in order: what was taken away can be sent for at once.
    At most what is computed on and what comes next is on the device, so there are two buffers.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def take_away(self, home: Tensor, tensor: Tensor) -> None:
        """Start to copy ``tensor`` (on the device) into ``home`` (on the host)."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            home.copy_(tensor, non_blocking=True)
        # its memory must not be given to another tensor before the copy is done
        tensor.record_stream(self.stream)

    def send_for(self, homes: Sequence[Tensor]) -> Arrival:
        """Start to copy ``homes`` to the device."""
        with torch.cuda.stream(self.stream):
            coming = [home.to(self.device, non_blocking=True) for home in homes]
            done = self.stream.record_event()

        def arrived() -> list[Tensor]:
            here = torch.cuda.current_stream(self.device)
            here.wait_event(done)
            for tensor in coming:
                tensor.record_stream(here)
            return coming

        return arrived

    def settle(self) -> None:
        """Wait until the host may read what was taken away."""
        self.stream.synchronize()
