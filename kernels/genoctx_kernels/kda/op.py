"""``kda``: the op the model calls. Dispatch; layout, padding to whole blocks and autograd around chunked.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.kda import chunked
from genoctx_kernels.numerics import accumulator

BLOCK = 64
"""Tokens per block; half of it for keys of at most ``NARROW_KEY``, where states cost less than scores."""
NARROW_KEY = 32
WIDEST_KEY = 128
"""Of the Triton kernels: a scan keeps all keys of a state in registers."""


def to_blocks(x_BTHD: Tensor, dtype: torch.dtype, block: int) -> Tensor:
    """[B, T, H, D] -> [B*H, N, block, D], zero-padded at the end.

    A padded token has k = q = v = beta = 0 and g = 0: it leaves the state exactly as it is.
    """
    batch, tokens, heads, width = x_BTHD.shape
    x = x_BTHD.to(dtype).transpose(1, 2)
    if missing := -tokens % block:
        x = torch.nn.functional.pad(x, (0, 0, 0, missing))
    return x.reshape(batch * heads, -1, block, width).contiguous()


def from_blocks(x_MNCD: Tensor, batch: int, tokens: int) -> Tensor:
    """Inverse of :func:`to_blocks`."""
    x = x_MNCD.flatten(1, 2).unflatten(0, (batch, -1))
    return x[:, :, :tokens].transpose(1, 2)


def block_width(tokens: int, keys: int) -> int:
    """Tokens per block, or the smallest power of two that holds a shorter piece."""
    widest = BLOCK if keys > NARROW_KEY else BLOCK // 2
    block = 1
    while block < min(tokens, widest):
        block *= 2
    return block


class _Kda(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        if not inputs[0].shape[1]:
            ctx.save_for_backward(*inputs)
            dtype = accumulator(inputs[0].dtype)
            return inputs[2].to(dtype, copy=True), inputs[5].to(dtype, copy=True)
        blocks, state = _Kda._blocks(inputs)
        out, last, kept = chunked.forward(*[*blocks, state])
        ctx.save_for_backward(*inputs, *kept)
        batch, tokens = inputs[0].shape[:2]
        return from_blocks(out, batch, tokens), last.unflatten(0, (batch, -1))

    @staticmethod
    def _blocks(inputs: tuple[Tensor, ...]) -> tuple[list[Tensor], Tensor]:
        q, k, v, g, beta, state = inputs
        dtype, block = accumulator(q.dtype), block_width(q.shape[1], q.shape[3])
        blocks = [to_blocks(x, dtype, block) for x in (q, k, v, g)]
        blocks.append(to_blocks(beta.unsqueeze(-1), dtype, block).squeeze(-1))
        return blocks, state.to(dtype).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, ...]:
        d_out, d_last = d_outputs
        saved = ctx.saved_tensors  # once: checkpointing hands them out only once
        inputs, kept = saved[:6], saved[6:]
        if not inputs[0].shape[1]:
            return *(torch.zeros_like(x) for x in inputs[:5]), d_last.to(inputs[5].dtype)
        blocks, state = _Kda._blocks(inputs)
        batch, tokens = inputs[0].shape[:2]
        d_o = to_blocks(d_out, state.dtype, blocks[0].shape[2])
        q, k, v, g, beta = blocks
        d_state = d_last.to(state.dtype).flatten(0, 1)
        grads = chunked.backward(q, k, v, g, beta, chunked.Kept(*kept), d_o, d_state)
        token_grads = [from_blocks(x, batch, tokens) for x in (grads.q, grads.k, grads.v, grads.g)]
        token_grads.append(from_blocks(grads.beta.unsqueeze(-1), batch, tokens).squeeze(-1))
        token_grads.append(grads.state.unflatten(0, (batch, -1)))
        return tuple(d.to(x.dtype) for d, x in zip(token_grads, inputs, strict=True))


def kda(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, state_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Gated delta rule over T >= 0 tokens, continuing from ``state_BHKV``.

    q already carries its scale; g is the natural-log decay, -5 <= g <= 0; beta in [0, 1].
    Computes in float32 (float64 for float64 inputs) and returns outputs [B, T, H, V] and the state
    after the last token [B, H, K, V] in that dtype. Differentiable in all six inputs.
    Source: arXiv 2510.26692; same result as ``reference.kda_reference``.
    """
    inputs = (q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV)
    unsupported = f"keys wider than {WIDEST_KEY}" if q_BTHK.shape[-1] > WIDEST_KEY else ""
    if choose("kda", *inputs, unsupported=unsupported).triton:
        from genoctx_kernels.kda.triton_kda import kda_triton

        return kda_triton(*inputs)
    return _Kda.apply(*inputs)
