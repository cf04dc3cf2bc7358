"""``mhc_read`` in Triton: project, maps, collapse; their equations are in triton_streams.py and triton_maps.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genoctx_kernels.mhc.triton_maps import d_maps, maps
from genoctx_kernels.mhc.triton_streams import collapse, d_fn, d_pre, d_streams, project


class Read(torch.autograd.Function):
    """``op.mhc_read``; saves its inputs and n (n + 3) + 1 numbers a token."""

    @staticmethod
    def forward(
        ctx: Any, streams_TND: Tensor, fn: Tensor, base: Tensor, scale: Tensor,
        iters: int, hc_eps: float, rms_eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        streams, fn, base, scale = (x.contiguous() for x in (streams_TND, fn, base, scale))
        raw, inv = project(streams, fn, rms_eps)
        pre, post, comb = maps(raw, inv, base, scale, streams.shape[1], iters, hc_eps)
        ctx.save_for_backward(streams, fn, base, scale, raw, inv, pre)
        ctx.iters, ctx.eps = iters, hc_eps
        return collapse(streams, pre), post, comb

    @staticmethod
    def backward(ctx: Any, d_x: Tensor, d_post: Tensor, d_comb: Tensor) -> tuple[Tensor | None, ...]:
        streams, fn, base, scale, raw, inv, pre = ctx.saved_tensors
        d_x = d_x.contiguous()
        d_outputs = d_pre(streams, d_x), d_post.contiguous(), d_comb.contiguous()
        d_raw, along, d_base, d_scale = d_maps(
            raw, inv, base, scale, d_outputs, fn.shape[1], ctx.iters, ctx.eps
        )
        return (
            d_streams(streams, fn, d_raw, along, pre, d_x),
            d_fn(streams, d_raw).to(fn.dtype) if ctx.needs_input_grad[1] else None,
            d_base.to(base.dtype),
            d_scale.to(scale.dtype),
            None, None, None,
        )  # fmt: skip
