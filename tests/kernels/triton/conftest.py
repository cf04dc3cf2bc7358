"""Triton kernels on the CPU: the interpreter, memory full of NaN, and a skip where there is no Triton.

Triton reads TRITON_INTERPRET when it is imported and when a kernel is defined, so it is set here, before any
test module of this folder is imported. Compiling for a GPU needs a process without it: see ``ahead.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from genoctx_kernels import dispatch

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError("triton was imported before tests/kernels/triton: set TRITON_INTERPRET=1")
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))  # compare.py

# not "triton": this folder's own name, which Python would take for a namespace package
pytest.importorskip("triton.language", reason="triton cannot be imported here (it exists for Linux only)")


@pytest.fixture(autouse=True)
def _memory_full_of_nan() -> Iterator[None]:
    """Everything from ``torch.empty`` starts as NaN (integers: the largest), so what a kernel leaves shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op that asks ``dispatch.choose`` takes its Triton kernel, whatever the device and dtype."""
    monkeypatch.setattr(dispatch, "_reason", lambda tensors: "")
