"""Forward of the sparse attention: one program per query and tile of heads (equations in attention.py).

The latents of the query's pools are gathered a tile of columns at a time; all heads of the program use a
tile twice, as keys and as values, and the latents have no other part. The softmax runs online in base 2.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.dsa.triton_columns import gathered
from genoctx_kernels.triton_product import dot

HEAD_TILE, COLUMN_TILE = 32, 32
FLOAT32_TILE = 16  # both ways: multiply-adds without tensor cores keep their operands in registers
LAUNCH = {"num_warps": 8, "num_stages": 5, "enable_fp_fusion": True}
"""Five stages: ids are fetched two tiles ahead and latents one, so that gathering runs beside multiplying."""

LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2))


@triton.jit(do_not_specialize=["first"])
def forward_kernel(
    q_ptr, latents_ptr, pools_ptr, out_ptr, lse_ptr, first, pools, log2_scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, POOL: tl.constexpr,
    HT: tl.constexpr, CT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Outputs [HT, WIDTH] and natural log-sum-exps of one query; one that sees nothing gets 0 and -inf."""
    t = tl.program_id(0).to(tl.int64)
    pools_ptr += t * pools
    head = tl.program_id(1) * HT + tl.arange(0, HT)
    r = tl.arange(0, WIDE)
    at = head[:, None] * WIDTH + r[None, :]
    inside = (head < HEADS)[:, None] & (r < WIDTH)[None, :]
    q = tl.load(q_ptr + t * (HEADS * WIDTH) + at, mask=inside, other=0.0)
    out = tl.zeros([HT, WIDE], tl.float32)
    top = tl.full([HT], float("-inf"), tl.float32)
    total = tl.zeros([HT], tl.float32)
    for start in range(0, pools * POOL, CT):
        c, seen = gathered(latents_ptr, pools_ptr, start, pools, first + t, POOL, CT, WIDTH, WIDE)
        logits = dot(q, tl.trans(c), tl.zeros([HT, CT], tl.float32)) * log2_scale
        logits = tl.where(seen[None, :], logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen so far
        weights = tl.exp2(logits - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        out = dot(weights.to(c.dtype), c, out * shrink[:, None])
        top = new_top
    total = tl.where(total > 0.0, total, 1.0)
    out = out / total[:, None]
    tl.store(out_ptr + t * (HEADS * WIDTH) + at, out.to(out_ptr.dtype.element_ty), mask=inside)
    lse = (top + tl.log2(total)) * LN2
    tl.store(lse_ptr + t * HEADS + head, lse, mask=head < HEADS)


def tiles(dtype: torch.dtype, heads: int, width: int) -> dict[str, int]:
    """Constants of a launch: heads and columns a program multiplies at once, and the padded latent width."""
    wide = max(16, triton.next_power_of_2(width))
    if dtype == torch.float32:
        return {"HT": FLOAT32_TILE, "CT": FLOAT32_TILE, "WIDE": wide}
    return {"HT": min(HEAD_TILE, max(16, triton.next_power_of_2(heads))), "CT": COLUMN_TILE, "WIDE": wide}


def forward(
    q_THR: Tensor, latents_SR: Tensor, pools_TK: Tensor, first: int, pool: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs [T, H, R] in the dtype of q and natural log-sum-exps [T, H], float32.

    ``pools_TK``, int32, holds every pool a query may look at, its open one included, -1 where unused.
    """
    q, latents, pools = q_THR.contiguous(), latents_SR.contiguous(), pools_TK.contiguous()
    tokens, heads, width = q.shape
    out = torch.empty_like(q)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    constants = tiles(q.dtype, heads, width)
    if tokens:
        forward_kernel[(tokens, triton.cdiv(heads, constants["HT"]))](
            q, latents, pools, out, lse, first, pools.shape[1], scale * math.log2(math.e),
            HEADS=heads, WIDTH=width, POOL=pool, **constants, **LAUNCH,
        )  # fmt: skip
    return out, lse
