"""The latents behind a query's list of pools, column by column; shared by the attention kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gathered(
    latents_ptr, pools_ptr, start, pools, position, POOL: tl.constexpr, CT: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Latents [CT, WIDE] of columns start, start + 1, ... of one query's pools; whether the query sees them.

    Column ``P k + s`` is token s of the k-th pool. An unused pool (-1) has no tokens, and tokens after the
    query's ``position`` are the future: neither is read, both are zeros here.
    """
    column = start + tl.arange(0, CT)
    pool = tl.load(pools_ptr + column // POOL, mask=column < pools * POOL, other=-1)
    token = pool.to(tl.int64) * POOL + column % POOL
    seen = (pool >= 0) & (token <= position)
    r = tl.arange(0, WIDE)
    at = token[:, None] * WIDTH + r[None, :]
    return tl.load(latents_ptr + at, mask=seen[:, None] & (r < WIDTH)[None, :], other=0.0), seen
