"""The KDA layer's mixer (spec section 2.4): projections, short convolutions, gates, recurrence, output gate.

Letters: B rows, T tokens, D hidden, H heads, K key = value width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from genoctx.model.carry import Chunk, KdaCarry, working_like
from genoctx.model.config import ModelConfig
from genoctx.model.gates import gated_norm, log_decay
from genoctx.model.linear import Linear
from genoctx.model.norms import l2_normalise
from genoctx.model.parallel.edges import Edges, exchange
from genoctx.model.parallel.pieces import Pieces
from genoctx.model.parallel.state import kda_piece
from genoctx_kernels.conv import short_conv
from genoctx_kernels.kda import kda
from genoctx_kernels.numerics import accumulator, up


class _Conv(nn.Module):
    """Holds a depthwise weight in the hub's shape [channels, 1, width]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class KimiDeltaAttention(nn.Module):
    """Gated delta rule with a decay per key channel. ``forward(x, chunk, carry) -> (y, carry)``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, low = config.hidden_size, config.linear_gate_low_rank
        self.heads, self.width = config.linear_num_heads, config.linear_head_dim
        self.conv_width = config.linear_conv_kernel_dim
        self.lower_bound, self.eps = config.linear_lower_bound, config.rms_norm_eps
        inner = self.heads * self.width
        self.q_proj, self.k_proj, self.v_proj = (Linear(hidden, inner) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (_Conv(inner, self.conv_width) for _ in range(3))
        self.f_a_proj, self.f_b_proj = Linear(hidden, low), Linear(low, inner)
        self.g_a_proj, self.g_b_proj = Linear(hidden, low), Linear(low, inner)
        self.b_proj = Linear(hidden, self.heads)
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.dt_bias = nn.Parameter(torch.zeros(inner))
        self.o_norm = _Scale(self.width)
        self.o_proj = Linear(inner, hidden)

    def initial_carry(self, batch: int) -> KdaCarry:
        weight = working_like(self.q_proj.weight)
        tail = weight.new_zeros(batch, self.conv_width - 1, self.heads * self.width)
        state = weight.new_zeros(batch, self.heads, self.width, self.width, dtype=accumulator(weight.dtype))
        return KdaCarry((tail, tail, tail), state)

    def _log_decay(self, x: Tensor) -> Tensor:
        """g [B, T, H, K] in (lower_bound, 0)."""
        return log_decay(self.f_b_proj(self.f_a_proj(x)), self.dt_bias, self.A_log, self.lower_bound)

    def _gated(self, out_BTHK: Tensor, x: Tensor) -> Tensor:
        """Norm first, then a plain sigmoid gate (spec 2.4 step 6): [B, T, H K]."""
        return gated_norm(out_BTHK.to(x.dtype), self.g_b_proj(self.g_a_proj(x)), self.o_norm.weight, self.eps)

    def forward(self, x: Tensor, chunk: Chunk, carry: KdaCarry) -> tuple[Tensor, KdaCarry]:
        valid = chunk.valid()
        if valid is not None:
            x = x * valid.unsqueeze(-1)
        (q, k, v), tails = self._convolved(x, chunk, carry)
        q = l2_normalise(q, self.width**-0.5)
        beta = torch.sigmoid(self.b_proj(x))
        inputs = (q, l2_normalise(k), v, self._log_decay(x), up(beta), carry.state)
        out, state = kda_piece(*inputs, chunk.pieces) if chunk.pieces else kda(*inputs)
        y = self.o_proj(self._gated(out, x))
        return y, KdaCarry((tails[0], tails[1], tails[2]), state)

    def _convolved(self, x: Tensor, chunk: Chunk, carry: KdaCarry) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """q, k, v [B, T, H, K] after their convolutions, and the tails that leave the chunk."""
        if chunk.pieces is not None:
            return self._convolved_piece(x, chunk.pieces, carry)
        convolved, tails = [], []
        for name, tail in zip("qkv", carry.tails, strict=True):
            y, tail = self._conv(name, getattr(self, f"{name}_proj")(x), tail)
            convolved.append(y)
            tails.append(tail)
        return convolved, tuple(tails)

    def _convolved_piece(
        self, x: Tensor, pieces: Pieces, carry: KdaCarry
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """The same where the tokens before this rank's pieces are another's."""
        raws = [getattr(self, f"{name}_proj")(x) for name in "qkv"]
        width = self.conv_width - 1
        needs = (width,) * (len(pieces.lengths) + 1)
        edges = Edges(pieces.group, pieces.lengths, width, width, needs, "kda halo")
        by_piece = [pieces.split(raw) for raw in raws]
        ends = zip(*map(edges.last, by_piece), strict=True)
        before, after = exchange([torch.cat(end, -1) for end in ends], torch.cat(carry.tails, -1), edges)
        found = [
            [self._conv(*each)[0] for each in zip("qkv", raw, tails.chunk(3, -1), strict=True)]
            for raw, tails in zip(zip(*by_piece, strict=True), before, strict=True)
        ]
        convolved = [torch.cat(each, 1) for each in zip(*found, strict=True)]
        return convolved, tuple(t.clone() for t in after.chunk(3, -1))

    def _conv(self, name: str, raw: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        y, tail = short_conv(raw, getattr(self, f"{name}_conv1d").weight.squeeze(1), tail)
        return y.unflatten(-1, (self.heads, -1)), tail
