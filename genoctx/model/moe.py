"""Dense and mixture-of-experts MLPs with the clamped SwiGLU (spec sections 2.9 and 2.10).

Letters: M tokens (batch flattened), D hidden, E experts, I expert width, A choices a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from genoctx.model.adapter import LowRank
from genoctx.model.carry import Aux, Choices, Chunk
from genoctx.model.config import ModelConfig
from genoctx.model.linear import Linear
from genoctx_kernels.moe import Pair, routed_experts
from genoctx_kernels.numerics import up
from genoctx_kernels.swiglu import clamped_swiglu
from genoctx_kernels.topk import best_columns


class DenseMLP(nn.Module):
    """W_down(silu(min(W_gate x, limit)) * clip(W_up x)); also the shared expert."""

    def __init__(self, hidden: int, inner: int, limit: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (Linear(hidden, inner) for _ in range(2))
        self.down_proj = Linear(inner, hidden)
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        gate_up = torch.cat((self.gate_proj(x), self.up_proj(x)), -1)
        return self.down_proj(clamped_swiglu(gate_up, self.limit))


class Experts(nn.Module):
    """Routed experts, stored grouped: gate and up stacked on the rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden, inner = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))
        self.limit = config.swiglu_limit
        self.adapters = nn.ModuleDict()
        """By the hub's name of a projection: gate_proj, up_proj, down_proj."""

    def adaptable(self) -> dict[str, Tensor]:
        """The weights [E, outputs, inputs] that an adapter may be added to, by the hub's names."""
        gate, up = self.gate_up_proj.chunk(2, 1)
        return {"gate_proj": gate, "up_proj": up, "down_proj": self.down_proj}

    def forward(self, x_MD: Tensor, experts_MA: Tensor, weights_MA: Tensor) -> Tensor:
        """sum over the chosen experts of weight * expert(x)."""
        args = (x_MD, experts_MA, weights_MA, self.gate_up_proj, self.down_proj, self.limit)
        return routed_experts(*args, *self._pairs(x_MD.dtype)) if self.adapters else routed_experts(*args)

    def _pairs(self, dtype: torch.dtype) -> tuple[Pair | None, Pair | None]:
        """The adapters of gate and up as one (A stacked, B on the diagonal), and that of down."""
        pairs: dict[str, Pair] = {}
        for name, adapter in self.adapters.items():
            assert isinstance(adapter, LowRank)
            pairs[name] = adapter.pair(dtype)
        gate, up = pairs.get("gate_proj"), pairs.get("up_proj")
        ranks = [p.a.shape[1] for p in (gate, up) if p]
        inner = None
        if gate or up:
            width = self.gate_up_proj.shape[1] // 2
            a = torch.cat([p.a for p in (gate, up) if p], 1)
            zeros = [a.new_zeros(len(a), width, rank) for rank in ranks]
            gate_row = torch.cat([gate.b, *zeros[1:]], 2) if gate else zeros[0]
            up_row = torch.cat([*zeros[:-1], up.b], 2) if up else zeros[0]
            inner = Pair(a, torch.cat((gate_row, up_row), 1))
        return inner, pairs.get("down_proj")


class Router(nn.Module):
    """Sigmoid scores in float32; the correction bias takes part in the choice only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(config.n_routed_experts), requires_grad=False)
        self.top, self.scale = config.num_experts_per_tok, config.routed_scaling_factor
        self.adapter: LowRank | None = None

    def forward(self, x_MD: Tensor, experts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [M, E], chosen experts int64 [M, A] (the given ones, if any), their weights [M, A]."""
        logits = up(x_MD) @ up(self.weight).T
        if self.adapter is not None:
            logits = logits + self.adapter(up(x_MD))
        scores = torch.sigmoid(logits)
        if experts is None:
            experts = best_columns(scores.detach() + up(self.e_score_correction_bias), self.top)
        chosen = scores.gather(1, experts)
        return logits, experts, self.scale * chosen / (chosen.sum(-1, keepdim=True) + 1e-20)


class MoE(nn.Module):
    """Routed experts plus one shared expert that is neither scaled nor gated."""

    def __init__(self, config: ModelConfig, balance: bool) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        inner = config.moe_intermediate_size * config.n_shared_experts
        self.shared_experts = DenseMLP(config.hidden_size, inner, config.swiglu_limit)
        self.balance = balance

    def forward(self, x_BTD: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor, Aux]:
        """Output, the experts chosen (int16 [M, A]) and the sums for the balance loss."""
        x = x_BTD.flatten(0, 1)
        replayed = chunk.choices.experts if chunk.choices else None
        logits, experts, weights = self.gate(x, replayed.long() if replayed is not None else None)
        y = self.experts(x, experts, weights) + self.shared_experts(x)
        aux = self._balance_sums(logits, chunk.valid()) if self.balance else Aux()
        return y.view_as(x_BTD), experts.to(torch.int16), aux

    def _balance_sums(self, logits_ME: Tensor, valid: Tensor | None) -> Aux:
        """Counts and mean-probability sums over real tokens; uses softmax(z), not sigmoid (spec 2.10)."""
        if valid is not None:
            logits_ME = logits_ME[valid.flatten()]
        probs = logits_ME.softmax(-1)
        top = best_columns(probs.detach(), self.gate.top)
        counts = torch.bincount(top.flatten(), minlength=probs.shape[1])
        return Aux(router_rows=len(probs), router_counts=counts, router_probs=probs.sum(0))


def choices_of(pools: tuple[Tensor, ...] | None, experts: Tensor | None) -> Choices | None:
    """Choices of a layer, or None for a layer that chooses nothing."""
    return None if pools is None and experts is None else Choices(pools, experts)
