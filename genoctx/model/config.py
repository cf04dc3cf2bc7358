"""Shapes of a glm5_next text model, as presets and hub configs (genoctx/model/hub_config.py) give them.

Field names are those of the published ``text_config`` (spec section 1.1), so that a hub file and a
preset speak the same language. No torch here: ``genoctx show preset`` must be instant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from genoctx.errors import ConfigError

KDA = "linear_attention"
DSA = "deepseek_sparse_attention"
_DSA_SPELLINGS = {DSA, "full_attention", "indexed_attention"}
DENSE, SPARSE = "dense", "sparse"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One text model. Defaults are the published values of GLM-5.3-Flash."""

    vocab_size: int = 154880
    token_bases: int = 1
    """Bases that one token stands for (genoctx/genome/codec.py)."""
    hidden_size: int = 4096
    num_hidden_layers: int = 45
    layer_types: tuple[str, ...] = ()
    """Per layer ``linear_attention`` (KDA) or ``deepseek_sparse_attention``; empty: DSA at i mod 4 = 3."""
    mlp_layer_types: tuple[str, ...] = ()
    """Per layer ``dense`` or ``sparse``; empty: the first ``first_k_dense_replace`` are dense."""
    first_k_dense_replace: int = 3
    intermediate_size: int = 12288
    moe_intermediate_size: int = 2048
    n_routed_experts: int = 288
    num_experts_per_tok: int = 8
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    swiglu_limit: float = 10.0
    rms_norm_eps: float = 1e-5
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    linear_num_heads: int = 64
    linear_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    linear_gate_low_rank: int = 128
    """Width of the two low-rank gates f and g; the hub model uses the KDA head dimension."""
    linear_lower_bound: float = -5.0
    """Log-decay per token lies above it; the kernels' anchors keep -5 within float32, not less."""
    num_attention_heads: int = 64
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 256
    v_head_dim: int = 256
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 2048
    index_kpool: int = 4
    pad_token_id: int | None = 154820
    """Its embedding row never receives a gradient (Hugging Face ``padding_idx``)."""
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        n = self.num_hidden_layers
        kinds = self.layer_types or tuple(DSA if i % 4 == 3 else KDA for i in range(n))
        mlps = self.mlp_layer_types or tuple(
            DENSE if i < self.first_k_dense_replace else SPARSE for i in range(n)
        )
        object.__setattr__(self, "layer_types", tuple(DSA if k in _DSA_SPELLINGS else k for k in kinds))
        object.__setattr__(self, "mlp_layer_types", tuple(mlps))
        self._check()

    def _check(self) -> None:
        n = self.num_hidden_layers
        for name, allowed in (("layer_types", {KDA, DSA}), ("mlp_layer_types", {DENSE, SPARSE})):
            kinds = getattr(self, name)
            if len(kinds) != n:
                raise ConfigError(
                    f"model.{name} has {len(kinds)} entries for {n} layers",
                    f"give one entry per layer, or leave {name} out for the published pattern",
                )
            if unknown := set(kinds) - allowed:
                raise ConfigError(
                    f"model.{name}: unknown kind {sorted(unknown)[0]!r}", f"use {sorted(allowed)}"
                )
        if self.index_topk % self.index_kpool:
            raise ConfigError(
                f"model.index_topk {self.index_topk} is not a multiple of model.index_kpool {self.index_kpool}",
                "the indexer selects whole pools; change one of the two",
            )
        if not -5 <= self.linear_lower_bound < 0:
            raise ConfigError(
                f"model.linear_lower_bound {self.linear_lower_bound} is not in [-5, 0)",
                "stronger decays overflow float32 between the kernels' anchors; the published value is -5.0",
            )
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "hc_mult",
            "index_kpool",
            "index_topk",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ConfigError(
                f"model.num_experts_per_tok {self.num_experts_per_tok} exceeds "
                f"model.n_routed_experts {self.n_routed_experts}"
            )

    @property
    def topk_pools(self) -> int:
        """Pools the indexer keeps per query, beside the always selected tail."""
        return self.index_topk // self.index_kpool

    @property
    def kda_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == KDA)

    @property
    def dsa_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == DSA)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.mlp_layer_types) if kind == SPARSE)

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
