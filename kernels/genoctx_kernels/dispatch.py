"""Which implementation of an op runs on these tensors, and why not the other.

Triton kernels need an NVIDIA GPU of compute capability 8.0 or newer, and some of them more shared memory than
every such GPU has. Everything else runs in plain torch, whose results differ only by rounding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

TRITON, TORCH = "triton", "torch"
VARIABLE = "GENOCTX_KERNELS"
"""Environment variable: ``torch`` keeps every op in plain torch."""

OLDEST = (8, 0)


@dataclass(frozen=True)
class Choice:
    """The backend of an op, ``triton`` or ``torch``, and why it is not Triton (empty where it is)."""

    backend: str
    reason: str = ""

    @property
    def triton(self) -> bool:
        return self.backend == TRITON


chosen: dict[str, Choice] = {}
"""The last choice made for each op in this process, for ``doctor`` and logs."""


_asked: list[str] = []
"""Why plain torch was asked for, while it is."""


@contextmanager
def plain_torch() -> Iterator[None]:
    """Every op inside takes plain torch, to compare or to measure; of one thread."""
    _asked.append("plain torch was asked for")
    try:
        yield
    finally:
        _asked.pop()


def choose(op: str, *tensors: Tensor, unsupported: str = "") -> Choice:
    """The backend for ``op`` on ``tensors``; ``unsupported`` says why the op's kernel cannot take them."""
    reason = _reason(tensors) or unsupported
    choice = Choice(TORCH, reason) if reason else Choice(TRITON)
    chosen[op] = choice
    return choice


def _reason(tensors: tuple[Tensor, ...]) -> str:
    if _asked:
        return _asked[-1]
    if not all(t.is_cuda for t in tensors):
        return "the tensors are not on a GPU"
    if not all(t.numel() for t in tensors):
        return "a tensor has no elements"
    if any(t.dtype == torch.float64 for t in tensors):
        return "float64 is for checking and runs in plain torch"
    return machine_reason(tensors[0].device.index or 0)


@cache
def shared_memory(device: int = 0) -> int:
    """Bytes of shared memory that one program may have on a GPU that Triton can use.

    99 KiB on 8.6, 8.9 and 12.x, 163 on 8.0, 227 on 9.0 and 10.x.
    """
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


@cache
def machine_reason(device: int = 0) -> str:
    """Why this machine cannot run Triton kernels; empty where it can."""
    if os.environ.get(VARIABLE) == TORCH:
        return f"{VARIABLE}={TORCH} is set"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        return f"compute capability {capability[0]}.{capability[1]} is older than {OLDEST[0]}.{OLDEST[1]}"
    return ""
