"""Pages of mapped files: taken out of the process when they are done with, brought back before they are needed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from genoctx.engine.mapped import MappedFiles

SIZE = 4 << 20
POPULATES = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 14)
"""Linux can map pages ahead; an older one only reads them."""


def resident(tensor: Tensor) -> int:
    """Bytes of the mapping that ``tensor`` starts with which this process has mapped."""
    found = re.search(
        rf"^{tensor.data_ptr():x}-.*?^Rss: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.M | re.S
    )
    assert found is not None
    return int(found[1]) << 10


def test_pages_go_and_come_back_ahead_of_need(tmp_path: Path) -> None:
    files = MappedFiles(tmp_path)
    tensor = files.allocate((SIZE,), torch.uint8)
    tensor.fill_(7)
    files.behind([tensor])
    assert resident(tensor) == 0
    half = tensor[SIZE // 2 :]
    files.ahead([half]).result(timeout=60)
    assert resident(tensor) == (SIZE // 2 if POPULATES else 0)
    assert bool((tensor == 7).all())


def test_what_was_not_allocated_here_is_left_alone(tmp_path: Path) -> None:
    files, other = MappedFiles(tmp_path), torch.ones(SIZE, dtype=torch.uint8)
    files.behind([other])
    files.ahead([other]).result(timeout=60)
    assert bool((other == 1).all())
