"""Which windows a step sees: a pure function of (seed, step). A resume needs no state but the step."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import PCG64, SeedSequence

_ORDER, _STRAND = 0, 1


def windows_for_step(n_windows: int, seed: int, step: int, per_step: int) -> list[tuple[int, int]]:
    """``(epoch, window)`` of the ``per_step`` windows of step ``step`` (0 is the first).

    Every epoch is its own permutation of all windows; a step may reach over the end of one.
    """
    if n_windows < 1:
        raise ValueError("there is no window to draw from")
    places = (divmod(step * per_step + i, n_windows) for i in range(per_step))
    return [(epoch, int(_order(n_windows, seed, epoch)[place])) for epoch, place in places]


def is_reversed(seed: int, epoch: int, window: int) -> bool:
    """Whether ``window`` is read as its reverse complement in ``epoch``: a fair coin."""
    state = SeedSequence(entropy=[seed, epoch, window], spawn_key=(_STRAND,)).generate_state(1)
    return bool(state[0] & 1)


@lru_cache(maxsize=4)
def _order(n_windows: int, seed: int, epoch: int) -> np.ndarray:
    # raw words and a stable sort: numpy promises these bits for ever, those of permutation() it does not
    words = PCG64(SeedSequence(entropy=[seed, epoch], spawn_key=(_ORDER,))).random_raw(n_windows)
    return np.argsort(words, kind="stable")
