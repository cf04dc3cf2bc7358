"""glibc's malloc, tuned once for tensors that come and go by the hundred megabytes.

By default glibc maps every block above 32 MiB afresh and gives memory back to the kernel at each
free, so every step pays page faults for the same memory again (2.5x in wall time on CPU). With
these settings freed blocks stay in the heap and are used again. Only Linux with glibc, only CPU.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
_KEEP_BYTES = 512 << 20  # free memory kept at the top of the heap
_MMAP_FROM_BYTES = 32 << 20  # the largest threshold glibc accepts; bigger blocks live long


def keep_freed_memory() -> bool:
    """Set the thresholds; False where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
        and mallopt(_M_TOP_PAD, 64 << 20)
    )
