"""Expert parallelism: every rank of a group holds some experts of a layer, and tokens travel to them.

Each (token, expert) pair goes to the expert's rank, through the expert, and back; the weighted sum is
made at home in the order of the one-process op, so that a token's result does not depend on the split.

Letters: M tokens, D hidden, A choices a token, E experts, L = E / ranks experts of one rank, R rows that
one rank sends or receives.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from genoctx.model.moe import Experts
from genoctx_kernels.moe import routed_experts


class _Exchange(torch.autograd.Function):
    """Rows to other ranks; the backward pass sends the gradients back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows_RD: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchange(rows_RD, send, receive, group)

    @staticmethod
    def backward(ctx: Any, gradient_RD: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient_RD, ctx.receive, ctx.send, ctx.group), None, None, None


def _exchange(rows_RD: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    found = rows_RD.new_empty(sum(receive), rows_RD.shape[1])
    dist.all_to_all_single(found, rows_RD.contiguous(), receive, send, group=group)
    return found


class ExpertParallel(nn.Module):
    """In the place of ``Experts``: the same parameters, of this rank's experts alone [L, ...]."""

    gate_up_proj: Tensor
    down_proj: Tensor

    def __init__(self, whole: Experts, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        here = dist.get_rank(group)
        self.limit = whole.limit
        self.per_rank = len(whole.gate_up_proj) // self.ranks
        mine = slice(here * self.per_rank, (here + 1) * self.per_rank)
        for name in ("gate_up_proj", "down_proj"):
            parameter = getattr(whole, name)
            part = nn.Parameter(parameter.detach()[mine].clone(), requires_grad=parameter.requires_grad)
            self.register_parameter(name, part)

    def forward(self, x_MD: Tensor, experts_MA: Tensor, weights_MA: Tensor) -> Tensor:
        """sum over the chosen experts of weight * expert(x), wherever the experts are: [M, D].

        Every rank of the group calls it at the same time, with as many tokens as it has, also none.
        """
        flat = experts_MA.flatten()
        order = flat.argsort(stable=True)
        tokens = order // experts_MA.shape[1]
        counts = torch.bincount(flat, minlength=self.ranks * self.per_rank)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        send, receive = (c.view(self.ranks, -1).sum(1).tolist() for c in (counts, arriving))
        local = torch.arange(self.per_rank, device=flat.device).repeat(self.ranks)
        experts_R1 = local.repeat_interleave(arriving).unsqueeze(1)
        rows_RD = _Exchange.apply(x_MD[tokens], send, receive, self.group)
        ones = weights_MA.new_ones(len(rows_RD), 1)
        out_RD = routed_experts(rows_RD, experts_R1, ones, self.gate_up_proj, self.down_proj, self.limit)
        home_RD = _Exchange.apply(out_RD, receive, send, self.group)
        scaled = home_RD * weights_MA.flatten()[order].unsqueeze(-1).to(x_MD.dtype)
        return torch.zeros_like(x_MD).index_add(0, tokens, scaled)
