"""A tiny model with adapters, for the tests of what they compute and of their files."""

from __future__ import annotations

from pathlib import Path

import torch

from genoctx.engine.batch import Batch
from genoctx.engine.stream import walk
from genoctx.model.adapter import Lora
from genoctx.model.block import Objectives
from genoctx.model.config import DSA, KDA, ModelConfig
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora import adapters, add_adapters
from genoctx.model.lora_file import (
    fingerprint,
)

EVERYWHERE = ("*",)
CONFIG = ModelConfig(
    vocab_size=6,
    hidden_size=8,
    num_hidden_layers=2,
    layer_types=(KDA, DSA),
    mlp_layer_types=("dense", "sparse"),
    intermediate_size=10,
    moe_intermediate_size=4,
    n_routed_experts=3,
    num_experts_per_tok=2,
    hc_mult=2,
    linear_num_heads=2,
    linear_head_dim=4,
    linear_gate_low_rank=3,
    num_attention_heads=2,
    q_lora_rank=4,
    kv_lora_rank=4,
    qk_nope_head_dim=4,
    v_head_dim=3,
    index_n_heads=2,
    index_head_dim=4,
    index_topk=8,
    index_kpool=4,
    pad_token_id=None,
)


def base(dtype: torch.dtype = torch.float64, objectives: Objectives | None = None, seed: int = 1) -> Hybrid:
    model = build(CONFIG, dtype=dtype, objectives=objectives or Objectives(), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 and "conv1d" not in name:
                p.copy_(0.4 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def adapted(
    dtype: torch.dtype = torch.float64,
    targets: tuple[str, ...] = EVERYWHERE,
    objectives: Objectives | None = None,
    folder: Path | None = None,
) -> Hybrid:
    """A base with adapters whose B is not zero any more."""
    model = base(dtype, objectives)
    digest = fingerprint(folder) if folder else ""
    add_adapters(model, Lora(2, 3.0, targets, folder, digest), seed=5)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, adapter in adapters(model):
            adapter.lora_B.copy_(torch.randn(adapter.lora_B.shape, generator=generator))
    return model


def window(seed: int = 0, length: int = 30) -> Batch:
    tokens = torch.randint(0, 4, (1, length), generator=torch.Generator().manual_seed(seed))
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    return Batch(tokens, targets, ("w",))


def logits(model: Hybrid, bounds: list[tuple[int, int]] | None = None) -> torch.Tensor:
    """[T, V] of a window, chunk by chunk."""
    batch, parts = window(), []
    for _, _, hidden in walk(model, batch, bounds or [(0, 30)]):
        rows, head = model.head(hidden[0])
        parts.append(rows @ head.T)
    return torch.cat(parts).detach()


def trained(model: Hybrid) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}
