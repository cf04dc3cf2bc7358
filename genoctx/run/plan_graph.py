"""What autograd keeps of one chunk, and the temporaries beside it: counted op by op from the code. No torch.

A chunk's graph does not depend on the window. :func:`saved_bytes` lists every tensor that a layer keeps for
its backward pass (each storage once); a test holds it against what autograd really keeps. The
temporaries of the largest op come on top; their factors are calibrated (``genoctx bench plan``).

Letters: M tokens of a chunk, all rows together, D hidden, N streams, H heads, K = V head width,
E experts, A choices a token, I expert width.
"""

from __future__ import annotations

from dataclasses import dataclass

from genoctx.model.config import KDA, SPARSE, ModelConfig
from genoctx.run.plan_bytes import ITEM, accumulator_item
from genoctx.run.plan_flops import KDA_BLOCK

NARROW_KEY = 32
"""Widest key whose blocks are half as long in plain torch (genoctx_kernels/kda/op.py)."""
EXPERT_ROWS = 16
"""Fewest rows that each expert's tokens are padded to (genoctx_kernels/moe/op.py); a tile of 64 on a GPU."""
EXPERT_TILE = 64
EXPERT_CUT = 1024
"""Rows at which plain torch cuts an expert's tokens; the end is padded by an eighth of itself, about."""
LOSS_TILE = (8 << 20, 64)
"""Bytes of logits at a time, and the fewest rows of them (genoctx_kernels/loss/op.py)."""
FEW_LOGITS = 64
"""Logits a token up to which their gradient is kept."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a number, and which implementation runs."""

    item: int
    """Of activations."""
    wide: int
    """Of the accumulator: float32, or float64 for float64."""
    triton: bool
    """On a GPU; plain torch otherwise."""
    balance: bool
    """The balance loss keeps the router's probabilities."""

    @property
    def up(self) -> int:
        """Bytes of a copy in the accumulator's dtype where that is another one."""
        return self.wide if self.wide != self.item else 0


def sizes(dtype: str, *, triton: bool = False, balance: bool = False) -> Sizes:
    return Sizes(ITEM[dtype], accumulator_item(dtype), triton, balance)


def _site(c: ModelConfig, s: Sizes) -> float:
    """An mHC site with its norm: streams, maps, x before and after the norm, the block's output."""
    n, hidden = c.hc_mult, c.hidden_size
    maps = n * (n + 2)
    kept = maps + 1 + 2 * n + n * n  # raw or z, inv, pre, post, comb
    if not s.triton:  # gates, softmax, the totals of Sinkhorn
        kept += 2 * n + n * n + (2 * c.hc_sinkhorn_iters - 1) * n
    streams = n * hidden * s.item
    norm = 2 * hidden * s.item + s.wide
    return kept * s.wide + streams + norm + hidden * s.item


def _kda(c: ModelConfig, s: Sizes) -> float:
    heads, inner = c.linear_num_heads, c.linear_num_heads * c.linear_head_dim
    # raw q, k, v and v; q and k before their norm; the decay's f; the gated product
    narrow = 8 * inner + 2 * c.linear_gate_low_rank
    wide = 5 * inner + 3 * heads  # q and k after their norm, g, the gate and what it meets; three norms
    if not s.triton:
        block = KDA_BLOCK // 2 if c.linear_head_dim <= NARROW_KEY else KDA_BLOCK
        wide += 2 * inner + 3 * heads * block + inner * c.linear_head_dim // block  # W, U; a, P, T; states
    return narrow * s.item + wide * s.wide + heads * (s.item + s.up)


def _dsa(c: ModelConfig, s: Sizes) -> float:
    heads, latent = c.num_attention_heads, c.kv_lora_rank
    norms = (2 * c.q_lora_rank + latent) * s.item + 2 * s.wide
    queries = heads * (c.qk_nope_head_dim + 2 * latent + c.v_head_dim) * s.item
    ids = (c.topk_pools + 1) * 8 + ((c.topk_pools + 1) * 4 + heads * 4 if s.triton else 0)
    return norms + queries + ids


def _gated(width: float, s: Sizes) -> float:
    """A clamped SwiGLU: gate and up in one, and its result."""
    return 3 * width * s.item


def _moe(c: ModelConfig, s: Sizes) -> float:
    hidden, top = c.hidden_size, c.num_experts_per_tok
    router = c.n_routed_experts * s.wide * (2 if s.balance else 1) + hidden * s.up
    router += top * (8 + 3 * s.wide) + 2 * s.wide
    pairs: float
    if s.triton:
        pairs = top * (2 * c.moe_intermediate_size * s.item + 16)
    else:
        pairs = top * 2 * c.moe_intermediate_size * s.item
    return router + pairs + _gated(c.n_shared_experts * c.moe_intermediate_size, s)


def _mixer(c: ModelConfig, index: int, s: Sizes) -> float:
    """Bytes per token that the attention half of layer ``index`` keeps."""
    return _site(c, s) + (_kda(c, s) if c.layer_types[index] == KDA else _dsa(c, s))


def _mlp(c: ModelConfig, index: int, s: Sizes) -> float:
    """Bytes per token that the other half keeps."""
    sparse = c.mlp_layer_types[index] == SPARSE
    return _site(c, s) + (_moe(c, s) if sparse else _gated(c.intermediate_size, s))


def _ends(c: ModelConfig, s: Sizes) -> float:
    """The mean of the last streams, its norm, and the loss's inputs."""
    logits = c.vocab_size * s.wide if c.vocab_size <= FEW_LOGITS and not s.triton else 0
    return 2 * c.hidden_size * s.item + s.wide + (logits or 16)


def _padding(c: ModelConfig, tokens: int, s: Sizes) -> float:
    """Bytes of a MoE layer's rows that belong to no token, as expected."""
    share = min(tokens * c.num_experts_per_tok / c.n_routed_experts, EXPERT_CUT)
    padding = EXPERT_TILE / 2 if s.triton else max(EXPERT_ROWS / 2, share / 8)
    rows = c.n_routed_experts * padding
    return rows * 2 * c.moe_intermediate_size * s.item


def saved_bytes(c: ModelConfig, tokens: int, s: Sizes) -> int:
    """Bytes that autograd keeps of a chunk of ``tokens`` (all rows together)."""
    layers = sum(_mixer(c, i, s) + _mlp(c, i, s) for i in range(c.num_hidden_layers))
    return int(tokens * (layers + _ends(c, s)) + len(c.moe_layers) * _padding(c, tokens, s))


def map_bytes(c: ModelConfig, cp: int, wide: int) -> int:
    """Bytes of the affine maps where ``cp`` ranks share a chunk: in every KDA layer A of a rank's two pieces and the
    states that enter them, and, of the layer at work, [A | B] of all pieces and the states at their borders
    (genoctx/model/parallel/state.py).
    """
    if cp == 1:
        return 0
    state = c.linear_num_heads * c.linear_head_dim**2 * wide
    return state * (4 * len(c.kda_layers) + 3 * 2 * cp + 1)


def _kda_work(c: ModelConfig, s: Sizes) -> float:
    """Bytes per token that the backward pass of the recurrence takes while it runs."""
    inner = c.linear_num_heads * c.linear_head_dim
    gates = 6 * inner * s.wide
    if s.triton:
        return gates  # beside SEGMENT_WORK
    blocks = 8 * c.linear_num_heads * KDA_BLOCK + 4 * inner * c.linear_head_dim / KDA_BLOCK
    return (KDA_WIDTHS * inner + blocks) * s.wide


KDA_WIDTHS = 24
"""Tensors as wide as the heads that chunked.backward holds at its peak."""
SEGMENT_WORK = 2 << 30
"""Workspace of the Triton recurrence's backward pass (genoctx_kernels/kda/triton_kda.py)."""


def _dsa_work(c: ModelConfig, s: Sizes) -> float:
    """Bytes per token of the sparse attention's backward pass: gradients of queries and outputs."""
    return 4 * c.num_attention_heads * c.kv_lora_rank * s.item


def _mlp_work(c: ModelConfig, index: int, s: Sizes) -> float:
    """Bytes per token of the backward pass of a layer's experts or dense MLP."""
    if c.mlp_layer_types[index] != SPARSE:
        return 4 * c.intermediate_size * s.item
    if not s.triton:  # expert by expert
        return 2 * c.hidden_size * s.item
    return c.num_experts_per_tok * (3 * c.hidden_size + 2 * c.moe_intermediate_size) * s.item


def peak_bytes(c: ModelConfig, tokens: int, s: Sizes) -> int:
    """Most that a chunk's activations take: at some moment of the backward pass, walked layer by layer."""
    streams = 2 * c.hc_mult * c.hidden_size * s.item  # gradient of the streams, and what makes the next
    fixed = SEGMENT_WORK if s.triton and c.kda_layers else 0
    kept = _ends(c, s) * tokens
    peaks = []
    for i in range(c.num_hidden_layers):
        kept += _mixer(c, i, s) * tokens
        kda = c.layer_types[i] == KDA
        work = _kda_work(c, s) if kda else _dsa_work(c, s)
        peaks.append(kept + (work + streams) * tokens + (fixed if kda else 0))
        kept += _mlp(c, i, s) * tokens
        if c.mlp_layer_types[i] == SPARSE:
            kept += _padding(c, tokens, s)
        peaks.append(kept + (_mlp_work(c, i, s) + streams) * tokens)
    row = c.vocab_size * s.wide
    peaks.append(kept + 3 * min(tokens, max(LOSS_TILE[1], LOSS_TILE[0] // row)) * row)
    return int(max(peaks))
