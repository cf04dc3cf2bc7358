"""Floating-point operations of the model, forward, per token: closed forms of spec section 6. No torch.

Two per multiply-add, averaged over a window of L tokens. Training multiplies them: see :class:`Work`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from genoctx.model.config import ModelConfig

KDA_BLOCK = 64
"""Tokens per block of the chunked recurrence (genoctx_kernels/kda/op.py)."""


@dataclass(frozen=True)
class Flops:
    """FLOP per token of one forward pass, by part, all layers together."""

    kda_projections: float
    """Projections, gates and short convolutions."""
    kda_core: float
    dsa_projections: float
    """With the absorption of the key and value maps."""
    dsa_attention: float
    indexer_projections: float
    indexer_scores: float
    """The only part that grows with the window."""
    dense_mlp: float
    moe_routed: float
    moe_shared: float
    moe_router: float
    mhc: float
    head: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, f.name) for f in fields(self)))

    @property
    def indexer(self) -> float:
        return self.indexer_projections + self.indexer_scores


@dataclass(frozen=True)
class Work:
    """How often each part runs in one training step, in forward passes."""

    trunk: float
    indexer: float

    def per_token(self, flops: Flops) -> float:
        """FLOP per token of a training step."""
        return self.trunk * (flops.total - flops.indexer) + self.indexer * flops.indexer


NEEDED = Work(trunk=3, indexer=1)
"""Forward and backward, indexer frozen: what a utilisation is counted with."""
NEEDED_LORA = Work(trunk=2, indexer=1)
"""No gradient of frozen matrices."""
STREAMED = Work(trunk=4, indexer=1)
"""What a streamed step executes: two forwards and one backward; recorded selections are replayed."""
STREAMED_LORA = Work(trunk=3, indexer=1)
CHECKPOINTED = Work(trunk=4, indexer=2)
"""Every layer recomputed, its indexer too: what the published run executed."""


def mean_selected(length: int, pool: int, top: int) -> float:
    """Mean over queries t < ``length`` of min(floor((t+1)/P), top) P + (t+1) mod P."""
    full = min(length, top * pool + pool - 1)  # queries 1..full see whole pools only below the limit
    total = full * (full + 1) // 2
    beyond = length - full
    if beyond > 0:
        total += beyond * top * pool + _sum_of_remainders(full + 1, length, pool)
    return total / length


def _sum_of_remainders(first: int, last: int, pool: int) -> int:
    """Sum of n mod ``pool`` for first <= n <= last."""

    def below(n: int) -> int:
        whole, rest = divmod(n + 1, pool)
        return whole * pool * (pool - 1) // 2 + rest * (rest - 1) // 2

    return below(last) - below(first - 1)


def forward_flops(c: ModelConfig, length: int) -> Flops:
    """FLOP per token, forward, averaged over a window of ``length`` tokens (spec section 6)."""
    hidden, n_kda, n_dsa, n_moe = c.hidden_size, len(c.kda_layers), len(c.dsa_layers), len(c.moe_layers)
    heads, width = c.linear_num_heads, c.linear_head_dim
    inner, low = heads * width, c.linear_gate_low_rank
    projections = 4 * hidden * inner + 2 * (hidden * low + low * inner) + hidden * heads
    convs = 3 * c.linear_conv_kernel_dim * inner
    block = KDA_BLOCK
    core = block * 5 * width + 3 * width * width + block * block / 3

    q, latent, attention = c.q_lora_rank, c.kv_lora_rank, c.num_attention_heads
    qk, v = c.qk_nope_head_dim, c.v_head_dim
    mla = hidden * q + q * attention * qk + hidden * latent + attention * (qk + v) * latent
    mla += attention * v * hidden
    selected = mean_selected(length, c.index_kpool, c.topk_pools)
    index_heads, index = c.index_n_heads, c.index_head_dim
    index_maps = q * index_heads * index + 2 * hidden * index + hidden * index_heads
    n_maps = c.hc_mult * (c.hc_mult + 2)
    expert = 3 * hidden * c.moe_intermediate_size
    return Flops(
        kda_projections=n_kda * 2 * (projections + convs),
        kda_core=n_kda * 2 * heads * core,
        dsa_projections=n_dsa * 2 * mla,
        dsa_attention=n_dsa * 2 * attention * 2 * latent * selected,
        indexer_projections=n_dsa * 2 * index_maps,
        indexer_scores=n_dsa * 2 * index_heads * (index + 1) * (length / 2) / c.index_kpool,
        dense_mlp=(c.num_hidden_layers - n_moe) * 2 * 3 * hidden * c.intermediate_size,
        moe_routed=n_moe * 2 * c.num_experts_per_tok * expert,
        moe_shared=n_moe * 2 * c.n_shared_experts * expert,
        moe_router=n_moe * 2 * c.n_routed_experts * hidden,
        mhc=c.num_hidden_layers * 2 * 2 * (n_maps * c.hc_mult * hidden + n_maps * hidden),
        head=2 * hidden * c.vocab_size,
    )
