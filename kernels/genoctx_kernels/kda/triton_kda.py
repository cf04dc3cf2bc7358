"""KDA on a GPU: forward and backward in Triton kernels, segment by segment, and autograd around them.

A segment is as many blocks as fill the device: workspaces stay bounded however long the chunk is. Saved for
backward are the inputs and the state entering each segment; the rest is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from genoctx_kernels.kda import triton_backward as back
from genoctx_kernels.kda import triton_blocks as local
from genoctx_kernels.kda import triton_scan as across
from genoctx_kernels.kda.triton_launch import BLOCKS, SUB, Segment, Shape, products

UNITS = 4096
"""Blocks times heads of a segment: about 2 GiB of workspace in backward at 128 wide, thirty waves of programs."""


@dataclass(frozen=True)
class Inputs:
    """The token tensors of ``kda``, contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def segments(self) -> list[Segment]:
        batch, tokens, heads, key = self.k.shape
        parts = products(self.q, self.k, self.v)
        block = min(BLOCKS[parts], max(SUB, triton.next_power_of_2(tokens)))
        shape = Shape(heads, key, self.v.shape[-1], block, parts)
        blocks = -(-tokens // block)
        most = max(1, UNITS // (batch * heads))
        return [
            Segment(shape, batch * heads, tokens, n * block, min(most, blocks - n))
            for n in range(0, blocks, most)
        ]


@dataclass(frozen=True)
class Prepared:
    """A segment up to its forward scan, unit by unit; chunked.Blocks says what each is."""

    t: Tensor  # (I + A)^-1 [unit, C, C]
    p: Tensor  # [unit, C, C]
    q_in: Tensor  # [unit, C, K]
    k_out: Tensor  # [unit, C, K]
    w: Tensor  # [unit, C, K]
    decay: Tensor  # [unit, K]
    u: Tensor  # [unit, C, V]
    states: Tensor  # entering the block [unit, K, V]
    last: Tensor  # leaving the segment [B * H, K, V]


def prepare(x: Inputs, s: Segment, state: Tensor) -> Prepared:
    width, key, value = s.shape.block, s.shape.key, s.shape.value

    def room(*shape: int) -> Tensor:
        return torch.empty(s.units, *shape, dtype=torch.float32, device=state.device)

    a, p, t = (room(width, width) for _ in range(3))
    s.run(local.scores_kernel, "sub", x.q, x.k, x.g, a, p)
    s.run(local.solve_kernel, "block", a, x.beta, t)
    q_in, k_out, w = (room(width, key) for _ in range(3))
    decay, u, states, last = room(key), room(width, value), room(key, value), torch.empty_like(state)
    s.run(local.keys_kernel, "block K", x.q, x.k, x.g, x.beta, t, q_in, k_out, w, decay)
    s.run(local.values_kernel, "block V", x.v, x.beta, t, u)
    s.run(across.scan_kernel, "V", w, k_out, decay, state, u, states, last)
    return Prepared(t=t, p=p, q_in=q_in, k_out=k_out, w=w, decay=decay, u=u, states=states, last=last)


def forward(x: Inputs, state: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs [B, T, H, V] in float32, the last state [B * H, K, V], and the states entering each segment."""
    out = torch.empty(x.v.shape, dtype=torch.float32, device=x.v.device)
    entering = []
    for s in x.segments():
        entering.append(state)
        b = prepare(x, s, state)
        s.run(across.outputs_kernel, "block V", b.q_in, b.p, b.u, b.states, out)
        state = b.last
    return out, state, entering


def _segment_back(
    x: Inputs, grads: Inputs, s: Segment, state: Tensor, d_out: Tensor, d_last: Tensor
) -> Tensor:
    """Writes the segment's rows of ``grads``; returns the gradient of the state that enters it."""
    b = prepare(x, s, state)
    d_u, d_states, d_state = torch.empty_like(b.u), torch.empty_like(b.states), torch.empty_like(state)
    forward_parts = (b.w, b.q_in, b.k_out, b.p, b.decay)
    s.run(across.scan_back_kernel, "V", *forward_parts, d_out, d_last, d_u, d_states, d_state)

    d_r, d_p, d_a = torch.empty_like(b.u), torch.empty_like(b.p), torch.empty_like(b.p)
    key_tiles = -(-s.shape.key // s.shape.options(back.scores_back_kernel)["BK"])
    d_beta = b.p.new_empty(1 + key_tiles, s.units, s.shape.block)
    s.run(back.values_back_kernel, "block", x.v, x.beta, b.t, b.u, d_u, d_out, d_r, grads.v, d_p, d_a, d_beta)
    from_states = [torch.empty_like(b.w) for _ in range(3)]
    d_end, d_cum = torch.empty_like(b.decay), torch.empty_like(b.w)
    s.run(back.states_back_kernel, "block K", x.g, b.u, d_r, d_out, b.states, d_states, *from_states, d_end)
    tokens = (x.q, x.k, x.g, x.beta)
    s.run(back.scores_back_kernel, "sub K", *tokens, d_p, d_a, *from_states, grads.q, grads.k, d_cum, d_beta)
    s.run(back.gates_back_kernel, "block", x.k, from_states[2], d_cum, d_end, d_beta, grads.g, grads.beta)
    return d_state


def backward(x: Inputs, entering: list[Tensor], d_out: Tensor, d_last: Tensor) -> tuple[Inputs, Tensor]:
    """Gradients of the inputs, in their dtypes, and of the first state, from those of outputs and last state."""
    grads = Inputs(*(torch.empty_like(t) for t in (x.q, x.k, x.v, x.g, x.beta)))
    for s, state in zip(reversed(x.segments()), reversed(entering), strict=True):
        d_last = _segment_back(x, grads, s, state, d_out, d_last)
    return grads, d_last


class _TritonKda(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta, state = (t.contiguous() for t in tensors)
        out, last, entering = forward(Inputs(q, k, v, g, beta), state.float().flatten(0, 1))
        ctx.state_dtype = state.dtype
        ctx.save_for_backward(q, k, v, g, beta, *entering)
        return out, last.view(state.shape)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, ...]:
        d_out, d_last = (d.float().contiguous() for d in d_outputs)
        q, k, v, g, beta, *entering = ctx.saved_tensors
        x = Inputs(q, k, v, g, beta)
        grads, d_state = backward(x, entering, d_out, d_last.flatten(0, 1))
        d_state = d_state.view(d_last.shape).to(ctx.state_dtype)
        return grads.q, grads.k, grads.v, grads.g, grads.beta, d_state


def kda_triton(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTHK: Tensor, beta_BTH: Tensor, state_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """``op.kda`` in Triton kernels: same arguments, same results but for rounding."""
    return _TritonKda.apply(q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH, state_BHKV)
