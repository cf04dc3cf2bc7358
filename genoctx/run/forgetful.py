"""A home in files that leaves nothing in memory, for measuring: as if memory were short all the time.

What a step is done with is written to the disk on a thread, and then dropped from the kernel's cache too. So
what it needs again has to be read, as far as ``ahead`` has not begun to by then.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from genoctx.engine.homes import FileHome

_MS_SYNC, _MADV_PAGEOUT = 4, 21  # <sys/mman.h>; Linux 5.4 and later drop the pages
_libc = ctypes.CDLL(None)


class Forgetful(FileHome):
    """Mapped files whose pages go to the disk when they are done with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.writer = ThreadPoolExecutor(1)

    def behind(self, places: Iterable[Tensor]) -> None:
        self.writer.submit(_forget, list(places))


def _forget(places: list[Tensor]) -> None:
    """Write and drop the pages that lie wholly within ``places``. ctypes lets other threads run meanwhile."""
    page = mmap.PAGESIZE
    for place in places:
        first = place.data_ptr()
        start, end = -(-first // page) * page, (first + place.nbytes) // page * page
        if end > start:
            where, size = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
            _libc.msync(where, size, _MS_SYNC)
            _libc.madvise(where, size, _MADV_PAGEOUT)
