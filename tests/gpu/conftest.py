"""Tests for a machine with a GPU: `make test-gpu`, which sets GENOCTX_TEST_DEVICE=cuda.

Without the variable nothing in this folder is collected: kernels run either on a GPU or in Triton's interpreter
(tests/kernels/triton), never both in one process. GENOCTX_TEST_DEVICE=cpu runs the same checks on plain torch: it
proves the tests, not the kernels.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))  # compare.py

DEVICE = os.environ.get("GENOCTX_TEST_DEVICE", "")
collect_ignore_glob = [] if DEVICE else ["test_*.py"]
if DEVICE == "cuda" and not torch.cuda.is_available():
    raise pytest.UsageError("torch sees no GPU: these tests need one (genoctx doctor says more)")
