"""What is kept for long, in closed form and without torch: weights and their optimizer, and a window's state.

The window's part equals genoctx/engine/bytes.py number for number (tests/run/test_plan_bytes.py).

Letters as there: B rows, T tokens, C chunks, H heads, K key = value width, W convolution width, R latent
width, I index width, P tokens a pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from genoctx.model.config import SPARSE, ModelConfig
from genoctx.model.count import count_indexers, count_parameters

ITEM = {"float32": 4, "bfloat16": 2, "float64": 8}

PARAMETERS, GRADIENTS, MASTERS, MOMENTS = "parameters", "gradients", "masters", "moments"
CARRIES, LATENTS, D_LATENTS, IDS, TOKENS = "carries", "latents", "d_latents", "ids", "tokens"
GATHERED, GRAPH, BASE = "gathered weights", "chunk", "base"
CATEGORIES = (
    PARAMETERS,
    GRADIENTS,
    MASTERS,
    MOMENTS,
    CARRIES,
    LATENTS,
    D_LATENTS,
    IDS,
    TOKENS,
    GATHERED,
    GRAPH,
    BASE,
)
"""In the order they are printed. ``chunk`` is the peak of one chunk's activations; ``base`` the code itself."""


def accumulator_item(dtype: str) -> int:
    """Bytes of states, masters and gradient sums beside ``dtype`` weights."""
    return 8 if dtype == "float64" else 4


def count_held_wide(c: ModelConfig) -> int:
    """Parameters kept in float32 whatever the dtype (genoctx/model/hybrid.py, FP32_HELD)."""
    per_kda = c.linear_num_heads + c.linear_num_heads * c.linear_head_dim  # A_log, dt_bias
    per_site = c.hc_mult * (c.hc_mult + 2) + 3
    biases = len(c.moe_layers) * c.n_routed_experts
    return len(c.kda_layers) * per_kda + 2 * c.num_hidden_layers * per_site + biases


def count_adapters(c: ModelConfig, rank: int) -> int:
    """Parameters of rank-``rank`` adapters on every linear map of the trunk but indexers and experts."""
    hidden, inner, low = c.hidden_size, c.linear_num_heads * c.linear_head_dim, c.linear_gate_low_rank
    kda = 4 * (hidden + inner) + 2 * (hidden + low) + 2 * (low + inner) + hidden + c.linear_num_heads
    heads, qk, v = c.num_attention_heads, c.qk_nope_head_dim, c.v_head_dim
    q, latent = c.q_lora_rank, c.kv_lora_rank
    dsa = (hidden + q) + (q + heads * qk) + (hidden + latent) + (latent + heads * (qk + v))
    dsa += heads * v + hidden
    dense = 3 * (hidden + c.intermediate_size)
    shared = 3 * (hidden + c.n_shared_experts * c.moe_intermediate_size)
    n_moe = len(c.moe_layers)
    mlps = (c.num_hidden_layers - n_moe) * dense + n_moe * shared
    return rank * (len(c.kda_layers) * kda + len(c.dsa_layers) * dsa + mlps)


@dataclass(frozen=True)
class Weights:
    """Parameters and what training adds to them, in bytes of one copy of the model."""

    parameters: int
    gradients: int
    masters: int
    moments: int
    total: int
    """Numbers, not bytes: parameters of the trunk."""
    trainable: int


def weights_bytes(c: ModelConfig, dtype: str, *, indexer_kl: bool = False, lora_rank: int = 0) -> Weights:
    """Weights, gradient sums, float32 masters of low-precision weights, and AdamW's two averages.

    ``lora_rank`` > 0: the trunk is frozen and adapters of that rank are trained.
    """
    total, wide_held = count_parameters(c), count_held_wide(c)
    item, wide = ITEM[dtype], accumulator_item(dtype)
    held_item = max(4, item)
    base = (total - wide_held) * item + wide_held * held_item
    biases = len(c.moe_layers) * c.n_routed_experts
    trainable = total - biases - (0 if indexer_kl else count_indexers(c))
    low = trainable - (wide_held - biases)  # what needs a master where the dtype is narrow
    if lora_rank:
        trainable, low = count_adapters(c, lora_rank), 0  # adapters are as wide as the accumulator
        base += trainable * wide
    return Weights(
        parameters=base,
        gradients=trainable * wide,
        masters=low * wide if item < wide else 0,
        moments=2 * trainable * wide,
        total=total,
        trainable=trainable,
    )


def window_state(
    c: ModelConfig,
    length: int,
    batch: int,
    chunk: int,
    dtype: str,
    *,
    indexer_kl: bool = False,
    softmask: bool = False,
) -> dict[str, int]:
    """Bytes by category of ``batch`` windows of ``length`` tokens in chunks of ``chunk``.

    ``tokens``: ids and targets of 8 bytes, and a float32 share of each target where ``softmask``.
    """
    item, wide = ITEM[dtype], accumulator_item(dtype)
    chunks = -(-length // chunk)
    recorded = (chunks - 1) * chunk
    pools = -(-length // c.index_kpool)
    latents, keys = pools * c.index_kpool * c.kv_lora_rank, pools * c.index_head_dim
    n_dsa, n_kda = len(c.dsa_layers), len(c.kda_layers)
    n_moe = sum(kind == SPARSE for kind in c.mlp_layer_types)
    inner = c.linear_num_heads * c.linear_head_dim
    tails, state = 3 * (c.linear_conv_kernel_dim - 1) * inner, inner * c.linear_head_dim
    return {
        CARRIES: chunks * batch * n_kda * (tails * item + state * wide),
        LATENTS: batch * n_dsa * (latents + keys) * item,
        D_LATENTS: batch * n_dsa * (latents * wide + (keys * wide if indexer_kl else 0)),
        IDS: batch * recorded * (n_dsa * c.topk_pools * 4 + n_moe * c.num_experts_per_tok * 2),
        TOKENS: batch * length * (16 + (4 if softmask else 0)),
    }
