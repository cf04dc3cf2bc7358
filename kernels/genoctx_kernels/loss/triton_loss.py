"""``linear_cross_entropy`` in Triton: logits live in registers, a tile at a time, and are never stored.

Forward, one program per tile of tokens and stretch of the vocabulary: online log-sum-exp, and the target's logit.
Backward walks the vocabulary in panels: logits again, then ``d_logits`` of the panel (the one thing that is
stored, ``PANEL_BYTES`` of it), then its two products:

    d_logits_tv = (exp(logit_tv - lse_t) - [v = target_t]) d_total share_t
    d_h += d_logits W_panel        d_W_panel = d_logits^T h        complete: a panel has all tokens

Letters: T tokens, D hidden, V vocabulary.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.triton_product import Tile, multiply, product, tile_of

STRETCH = 4096
"""Vocabulary entries that one forward program walks: a matter of parallelism."""
PANEL_BYTES = 128 << 20
"""Of ``d_logits`` at a time; at least one tile of the vocabulary wide."""


@triton.jit
def _logits(
    h_ptr, w_ptr, t, v, tokens, vocabulary,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """h W^T for tokens ``t`` and ids ``v``: float32 [BT, BV]."""
    k = tl.arange(0, BK)
    h_at = h_ptr + t[:, None] * D + k[None, :]
    w_at = w_ptr + v[None, :] * D + k[:, None]
    return multiply(h_at, w_at, 1, 1, t < tokens, v < vocabulary, D, tl.zeros([BT, BV], tl.float32), BK)


@triton.jit(do_not_specialize=["tokens", "vocabulary"])
def forward_kernel(
    h_ptr, w_ptr, targets_ptr, lse_ptr, picked_ptr, tokens, vocabulary,
    D: tl.constexpr, STRETCH: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """lse [stretches, T] of this stretch's logits and, from the stretch that has it, the target's logit [T].

    Tokens without a target have no picked logit, and tiles of such tokens no lse either.
    """
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    stretch = tl.program_id(1).to(tl.int64)
    target = tl.load(targets_ptr + t, mask=t < tokens, other=-1)
    if tl.max(target, 0) >= 0:
        best = tl.full([BT], float("-inf"), tl.float32)
        total = tl.zeros([BT], tl.float32)
        for start in range(stretch * STRETCH, tl.minimum((stretch + 1) * STRETCH, vocabulary), BV):
            v = start + tl.arange(0, BV)
            logits = _logits(h_ptr, w_ptr, t, v, tokens, vocabulary, D, BT, BV, BK)
            logits = tl.where((v < vocabulary)[None, :], logits, float("-inf"))
            here = (target >= start) & (target < start + BV)
            picked = tl.sum(tl.where(v[None, :] == target[:, None], logits, 0.0), 1)
            tl.store(picked_ptr + t, picked, mask=here)
            higher = tl.maximum(best, tl.max(logits, 1))
            total = total * tl.exp(best - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
            best = higher
        tl.store(lse_ptr + stretch * tokens + t, best + tl.log(total), mask=t < tokens)


@triton.jit(do_not_specialize=["tokens", "vocabulary", "first"])
def d_logits_kernel(
    h_ptr, w_ptr, targets_ptr, lse_ptr, factor_ptr, d_ptr, tokens, vocabulary, first, width, d_row,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """d_logits [T, width] of the panel; zero for tokens without a target. ``factor`` is d_total share."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1).to(tl.int64) * BV + tl.arange(0, BV)
    v = first + column
    target = tl.load(targets_ptr + t, mask=t < tokens, other=-1)
    d = tl.zeros([BT, BV], tl.float32)
    if tl.max(target, 0) >= 0:
        lse = tl.load(lse_ptr + t, mask=target >= 0, other=float("inf"))  # exp of -inf: no probabilities
        factor = tl.load(factor_ptr + t, mask=target >= 0, other=0.0)
        logits = _logits(h_ptr, w_ptr, t, v, tokens, vocabulary, D, BT, BV, BK)
        hit = v[None, :] == target[:, None]
        d = (tl.exp(logits - lse[:, None]) - tl.where(hit, 1.0, 0.0)) * factor[:, None]
    inside = (t < tokens)[:, None] & (column < width)[None, :]
    tl.store(d_ptr + t[:, None] * d_row + column[None, :], d, mask=inside)


def _launch(tile: Tile) -> dict[str, Any]:
    return {
        "BT": tile.rows,
        "BV": tile.columns,
        "BK": tile.inner,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        "enable_fp_fusion": True,
    }


def _panel_width(tokens: int, vocabulary: int, itemsize: int, tile: Tile) -> int:
    """Vocabulary entries a panel, whole tiles."""
    tiles = max(1, PANEL_BYTES // (max(tokens, 1) * itemsize * tile.columns))
    return min(tiles * tile.columns, vocabulary)


class LinearCrossEntropy(torch.autograd.Function):
    """``op.linear_cross_entropy``; saves its inputs and one log-sum-exp a token."""

    @staticmethod
    def forward(
        ctx: Any, h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, share_T: Tensor | None
    ) -> Tensor:
        h, weight, targets = h_TD.contiguous(), weight_VD.contiguous(), targets_T.contiguous()
        (tokens, hidden), vocabulary = h.shape, len(weight)
        tile = tile_of(h.dtype)
        stretches = triton.cdiv(vocabulary, STRETCH)
        lse = torch.empty(stretches, tokens, dtype=torch.float32, device=h.device)
        picked = torch.empty(tokens, dtype=torch.float32, device=h.device)
        forward_kernel[(triton.cdiv(tokens, tile.rows), stretches)](
            h, weight, targets, lse, picked, tokens, vocabulary, D=hidden, STRETCH=STRETCH, **_launch(tile)
        )
        lse = lse.logsumexp(0)
        ctx.save_for_backward(h, weight, targets, lse)
        ctx.share_T = share_T
        nats = torch.where(targets >= 0, lse.double() - picked.double(), 0.0)
        return nats.sum() if share_T is None else (nats * share_T).sum()

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        h, weight, targets, lse = ctx.saved_tensors
        (tokens, hidden), vocabulary = h.shape, len(weight)
        tile = tile_of(h.dtype)
        factor = d_total.expand(tokens) if ctx.share_T is None else d_total * ctx.share_T
        factor = factor.float().contiguous()
        width = _panel_width(tokens, vocabulary, h.element_size(), tile)
        panel = torch.empty(tokens, width, dtype=h.dtype, device=h.device)
        d_h = torch.empty(tokens, hidden, dtype=torch.float32, device=h.device)
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for first in range(0, vocabulary, width):
            last = min(first + width, vocabulary)
            d_logits_kernel[(triton.cdiv(tokens, tile.rows), triton.cdiv(last - first, tile.columns))](
                h, weight, targets, lse, factor, panel, tokens, vocabulary, first, last - first, width,
                D=hidden, **_launch(tile),
            )  # fmt: skip
            d_logits = panel[:, : last - first]
            product(d_logits, weight[first:last], d_h, add=first > 0)
            if d_weight is not None:
                product(d_logits.T, h, d_weight[first:last])
        return d_h.to(h.dtype), d_weight, None, None
