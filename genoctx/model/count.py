"""How many parameters a shape has, in closed form. No torch: ``genoctx show presets`` is instant."""

from __future__ import annotations

from genoctx.model.config import DSA, SPARSE, ModelConfig


def count_parameters(config: ModelConfig) -> int:
    """Parameters of the text trunk, router correction biases included (spec section 1.2)."""
    c, layers = config, range(config.num_hidden_layers)
    total = 2 * c.vocab_size * c.hidden_size + c.hidden_size
    for i in layers:
        total += _dsa(c) if c.layer_types[i] == DSA else _kda(c)
        total += _moe(c) if c.mlp_layer_types[i] == SPARSE else 3 * c.hidden_size * c.intermediate_size
        total += 2 * _mhc_site(c) + 2 * c.hidden_size
    return total


def count_active(config: ModelConfig) -> int:
    """Parameters one token meets: the trunk without the routed experts it is not sent to."""
    idle = config.n_routed_experts - config.num_experts_per_tok
    return count_parameters(config) - len(config.moe_layers) * idle * _expert(config)


def count_indexers(config: ModelConfig) -> int:
    """Parameters of all lightning indexers: frozen unless their KL is on."""
    return len(config.dsa_layers) * _indexer(config)


def count_experts(config: ModelConfig) -> int:
    """Parameters of all routed experts."""
    return len(config.moe_layers) * config.n_routed_experts * _expert(config)


def _kda(c: ModelConfig) -> int:
    width = c.linear_num_heads * c.linear_head_dim
    low_rank = 2 * c.linear_gate_low_rank * (c.hidden_size + width)
    convs = 3 * width * c.linear_conv_kernel_dim
    per_head = c.linear_num_heads * c.hidden_size + c.linear_num_heads  # beta projection, A_log
    return 4 * width * c.hidden_size + low_rank + convs + per_head + width + c.linear_head_dim


def _dsa(c: ModelConfig) -> int:
    heads, qk, v = c.num_attention_heads, c.qk_nope_head_dim, c.v_head_dim
    queries = c.hidden_size * c.q_lora_rank + c.q_lora_rank + c.q_lora_rank * heads * qk
    latents = c.hidden_size * c.kv_lora_rank + c.kv_lora_rank + c.kv_lora_rank * heads * (qk + v)
    return queries + latents + heads * v * c.hidden_size + _indexer(c)


def _indexer(c: ModelConfig) -> int:
    heads, dim = c.index_n_heads, c.index_head_dim
    keys = 2 * c.hidden_size * dim + 2 * dim + c.index_kpool * dim  # wk, compress gate, k_norm, ape
    return c.q_lora_rank * heads * dim + heads * c.hidden_size + keys


def _expert(c: ModelConfig) -> int:
    return 3 * c.hidden_size * c.moe_intermediate_size


def _moe(c: ModelConfig) -> int:
    router = c.n_routed_experts * (c.hidden_size + 1)
    return router + (c.n_routed_experts + c.n_shared_experts) * _expert(c)


def _mhc_site(c: ModelConfig) -> int:
    maps = c.hc_mult * (2 + c.hc_mult)
    return maps * c.hc_mult * c.hidden_size + maps + 3
