"""``routed_experts``: every token through its chosen experts, in plain torch here; on a GPU in triton_experts.py.

With r a (token, expert) pair, t its token, e its expert, s its weight:

    g_r = W_gate_up,e x_t        h_r = swiglu(g_r)           out_t = sum_r s_r W_down,e h_r
    h'_r = W_down,e^T d_out_t    d_s_r = h'_r . h_r          d_g_r = d_swiglu(s_r h'_r)
    d_W_down,e = sum_r s_r d_out_t h_r^T     d_W_gate_up,e = sum_r d_g_r x_t^T     d_x_t = sum_r W_gate_up,e^T d_g_r

Letters: M tokens, A choices a token, D hidden, E experts, I expert width, J = 2 I (gate, then up), R rank,
N outputs, K inputs of a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.dispatch import choose
from genoctx_kernels.numerics import accumulator, up
from genoctx_kernels.product import SUMMED, product, weight_gradient
from genoctx_kernels.swiglu.op import d_gated, gated

ROWS = 16
"""Each expert's tokens are padded to a multiple of this. Matrix products of very few rows take other
code paths in BLAS libraries, which round differently: without padding, a later token that joins an
expert could change the last bit of an earlier one."""

OCTAVE = 2
"""Numbers of rows between one power of two and the next. oneDNN keeps a compiled kernel, about a third of a MiB, for
every number of rows it has ever seen, so groups are cut at SUMMED and their ends padded to few different numbers."""


def padded_rows(count: int) -> int:
    """Rows that ``count`` > 0 tokens of an expert are padded to: a multiple of ROWS, at most half as many more."""
    step = max(ROWS, (1 << (count.bit_length() - 1)) // OCTAVE)
    return -(-count // step) * step


class Pair(NamedTuple):
    """A low-rank addition to a weight, of one matrix or of one for each expert: W + B A."""

    a: Tensor
    """[..., R, inputs]."""
    b: Tensor
    """[..., outputs, R]."""


def routed_experts(
    x_MD: Tensor,
    experts_MA: Tensor,
    weights_MA: Tensor,
    gate_up_EJD: Tensor,
    down_EDI: Tensor,
    limit: float,
    inner: Pair | None = None,
    outer: Pair | None = None,
) -> Tensor:
    """sum over the chosen experts of weight * expert(x): [M, D]. Source: spec sections 2.9 and 2.10.

    ``experts_MA`` int64, the experts of a token all different; ``weights_MA`` their weights;
    ``limit`` of the clamped SwiGLU; ``inner`` is added to gate and up, ``outer`` to down, without ever
    being multiplied out. Tokens are sorted by expert, so that each expert makes one product.
    """
    pairs = (*(inner or (None, None)), *(outer or (None, None)))
    if choose("moe", x_MD, experts_MA, weights_MA, gate_up_EJD, down_EDI).triton:
        from genoctx_kernels.moe.triton_experts import RoutedExperts

        return RoutedExperts.apply(x_MD, experts_MA, weights_MA, gate_up_EJD, down_EDI, limit, *pairs)
    return _RoutedExperts.apply(x_MD, experts_MA, weights_MA, gate_up_EJD, down_EDI, limit, *pairs)


class _Groups:
    """The pairs sorted by expert, in token order within each."""

    def __init__(self, experts_MA: Tensor, weights_MA: Tensor, experts: int, dtype: torch.dtype) -> None:
        flat = experts_MA.flatten()
        self.order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=experts).tolist()
        tokens = (self.order // experts_MA.shape[1]).split(counts)
        shares = weights_MA.flatten()[self.order].to(dtype).split(counts)
        self.parts = [
            (e, *part)
            for e in range(experts)
            if counts[e]
            for part in zip(tokens[e].split(SUMMED), shares[e].split(SUMMED), strict=True)
        ]

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor, int]]:
        """(expert, tokens, weights [rows, 1], pairs), at most SUMMED rows at a time.

        The rows after the pairs are padding: token 0 with weight 0. What comes out for them is dropped.
        """
        for e, tokens, shares in self.parts:
            padding = (0, padded_rows(len(tokens)) - len(tokens))
            yield e, F.pad(tokens, padding), F.pad(shares, padding).unsqueeze(-1), len(tokens)


class _Grouped:
    """x -> W_e x, or W_e x + B_e A_e x, and the gradients of those of W, A and B that are ``wanted``."""

    def __init__(
        self, weight_ENK: Tensor, a_ERK: Tensor | None, b_ENR: Tensor | None, wanted: tuple[bool, ...] = ()
    ) -> None:
        self.weight, self.a, self.b = weight_ENK, a_ERK, b_ENR
        parts = zip((weight_ENK, a_ERK, b_ENR), wanted, strict=False)
        self.sums = [
            torch.zeros_like(p, dtype=accumulator(p.dtype)) if w and p is not None else None for p, w in parts
        ]

    def gradients(self) -> list[Tensor | None]:
        """Of W, A and B; None for those not wanted."""
        return [None if d is None else d.to(self.weight.dtype) for d in self.sums]

    def __call__(self, x: Tensor, e: int) -> Tensor:
        y = product(x, self.weight[e])
        return y if self.a is None or self.b is None else y.add_(product(product(x, self.a[e]), self.b[e]))

    def d_input(self, d_y: Tensor, e: int) -> Tensor:
        d_x = product(d_y, self.weight[e].mT)
        if self.a is None or self.b is None:
            return d_x
        return d_x.add_(product(product(d_y, self.b[e].mT), self.a[e].mT))

    def add_gradients(self, d_y: Tensor, x: Tensor, e: int) -> None:
        d_weight, d_a, d_b = self.sums
        if d_weight is not None:
            d_weight[e] += weight_gradient(d_y, x)
        if d_a is not None and self.b is not None:
            d_a[e] += weight_gradient(product(d_y, self.b[e].mT), x)
        if d_b is not None and self.a is not None:
            d_b[e] += weight_gradient(d_y, product(x, self.a[e]))


class _RoutedExperts(torch.autograd.Function):
    """Saves its inputs and gate and up of every pair; works expert by expert."""

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, experts_MA: Tensor, weights_MA: Tensor, gate_up_EJD: Tensor, down_EDI: Tensor,
        limit: float, a_in: Tensor | None, b_in: Tensor | None, a_out: Tensor | None, b_out: Tensor | None,
    ) -> Tensor:  # fmt: skip
        first, second = _Grouped(gate_up_EJD, a_in, b_in), _Grouped(down_EDI, a_out, b_out)
        groups = _Groups(experts_MA, weights_MA, len(gate_up_EJD), x_MD.dtype)
        out, gate_ups = torch.zeros_like(x_MD), []
        for e, tokens, shares, pairs in groups:
            gate_up = first(x_MD.index_select(0, tokens), e)
            y = second(gated(gate_up, limit), e).mul_(shares)
            out.index_add_(0, tokens[:pairs], y[:pairs])
            gate_ups.append(gate_up)
        ctx.save_for_backward(
            x_MD, experts_MA, weights_MA, gate_up_EJD, down_EDI, a_in, b_in, a_out, b_out, *gate_ups
        )
        ctx.limit = limit
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, experts_MA, weights_MA, gate_up_EJD, down_EDI, a_in, b_in, a_out, b_out, *gate_ups = (
            ctx.saved_tensors
        )
        wanted = ctx.needs_input_grad
        first = _Grouped(gate_up_EJD, a_in, b_in, (wanted[3], wanted[6], wanted[7]))
        second = _Grouped(down_EDI, a_out, b_out, (wanted[4], wanted[8], wanted[9]))
        groups = _Groups(experts_MA, weights_MA, len(gate_up_EJD), x.dtype)
        d_x, d_shares = torch.zeros_like(x), []
        for (e, tokens, shares, pairs), gate_up in zip(groups, gate_ups, strict=True):
            d_y = d_out.index_select(0, tokens)
            h, d_h = gated(gate_up, ctx.limit), second.d_input(d_y, e)
            d_shares.append((up(d_h) * up(h)).sum(-1)[:pairs])
            second.add_gradients(d_y.mul_(shares), h, e)
            d_gate_up = d_gated(d_h.mul_(shares), gate_up, ctx.limit)
            first.add_gradients(d_gate_up, x.index_select(0, tokens), e)
            d_x.index_add_(0, tokens[:pairs], first.d_input(d_gate_up, e)[:pairs])
        d_weights = torch.zeros_like(weights_MA)
        d_weights.view(-1)[groups.order] = torch.cat(d_shares or [d_weights.view(-1)]).to(d_weights.dtype)
        (d_first, d_a_in, d_b_in), (d_second, d_a_out, d_b_out) = first.gradients(), second.gradients()
        return d_x, None, d_weights, d_first, d_second, None, d_a_in, d_b_in, d_a_out, d_b_out
