"""One decoder layer: attention site, then MLP site, on n residual streams.

``layer(chunk, carry) -> (chunk, carry)`` is the only forward pass of the project.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from genoctx.model.carry import Aux, Chunk, DsaCarry, KdaCarry, LayerCarry
from genoctx.model.config import DENSE, KDA, ModelConfig
from genoctx.model.dsa import SparseAttention
from genoctx.model.kda import KimiDeltaAttention
from genoctx.model.moe import DenseMLP, MoE, choices_of
from genoctx.model.norms import RMSNorm
from genoctx_kernels.mhc import mhc_mix, mhc_read


class Objectives(NamedTuple):
    """Training objectives beside the LM loss that the layers must provide sums for."""

    balance: bool = False
    kl_mode: str = "off"
    """Indexer KL: 'off' (the indexer is frozen), 'sparse' or 'dense'."""


LM_ONLY = Objectives()


class Layer(nn.Module):
    """KDA or DSA, then dense or MoE, each inside an mHC site (spec sections 2.3 to 2.10)."""

    def __init__(self, config: ModelConfig, index: int, objectives: Objectives) -> None:
        super().__init__()
        hidden, n = config.hidden_size, config.hc_mult
        self.config = config
        for site in ("attn", "ffn"):
            self.register_parameter(f"hc_{site}_fn", nn.Parameter(torch.empty(n * (n + 2), n * hidden)))
            self.register_parameter(f"hc_{site}_base", nn.Parameter(torch.zeros(n * (n + 2))))
            self.register_parameter(f"hc_{site}_scale", nn.Parameter(torch.ones(3)))
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.self_attn: KimiDeltaAttention | SparseAttention
        if config.layer_types[index] == KDA:
            self.self_attn = KimiDeltaAttention(config)
        else:
            self.self_attn = SparseAttention(config, objectives.kl_mode)
        self.mlp: DenseMLP | MoE
        if config.mlp_layer_types[index] == DENSE:
            self.mlp = DenseMLP(hidden, config.intermediate_size, config.swiglu_limit)
        else:
            self.mlp = MoE(config, objectives.balance)

    def _read(self, site: str, streams_TND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        fn, base, scale = (getattr(self, f"hc_{site}_{part}") for part in ("fn", "base", "scale"))
        return mhc_read(
            streams_TND, fn, base, scale, iters=c.hc_sinkhorn_iters, hc_eps=c.hc_eps, rms_eps=c.rms_norm_eps
        )

    def forward(self, chunk: Chunk, carry: LayerCarry) -> tuple[Chunk, LayerCarry]:
        """The chunk after this layer, with the choices made and auxiliary sums, and the next carry."""
        shape = chunk.x.shape[:2]
        streams = chunk.x.flatten(0, 1)

        x, post, comb = self._read("attn", streams)
        x = self.input_layernorm(x).unflatten(0, shape)
        pools, kl = None, None
        if isinstance(self.self_attn, KimiDeltaAttention):
            assert isinstance(carry, KdaCarry)
            y, carry = self.self_attn(x, chunk, carry)
        else:
            assert isinstance(carry, DsaCarry)
            y, carry, pools, kl = self.self_attn(x, chunk, carry)
        streams = mhc_mix(streams, y.flatten(0, 1), post, comb)

        x, post, comb = self._read("ffn", streams)
        x = self.post_attention_layernorm(x).unflatten(0, shape)
        experts, aux = None, Aux()
        if isinstance(self.mlp, MoE):
            y, experts, aux = self.mlp(x, chunk)
        else:
            y = self.mlp(x)
        streams = mhc_mix(streams, y.flatten(0, 1), post, comb)
        out = replace(
            chunk, x=streams.unflatten(0, shape), choices=choices_of(pools, experts), aux=replace(aux, kl=kl)
        )
        return out, carry
