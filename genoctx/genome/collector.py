"""A million rows are no garbage: work on them without Python's cycle collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Without the collector, which would walk all rows again and again (half the time of a million contigs)
    and find nothing: they form no cycles, so that they are freed as ever."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
