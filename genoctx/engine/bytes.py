"""What a window keeps for long, in closed form: every tensor by name, category, shape and dtype.

The sweeps reserve exactly this list (genoctx/engine/tape.py), so the bytes a planner adds up and the
bytes a window holds are one and the same numbers. Nothing is allocated here.

Beside the list a chunk leaves the index keys of its open pool, at most ``index_kpool - 1`` rows a DSA
layer and row of the batch: they stay on the device and are not counted.

Letters: B rows, T tokens, C chunks, H heads, K key = value width, W convolution width, R latent width,
I index width, S tokens up to a whole pool, J pools.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from genoctx.engine.batch import bounds
from genoctx.model.config import DSA, SPARSE, ModelConfig
from genoctx_kernels.numerics import accumulator

CARRIES, LATENTS, D_LATENTS, IDS = "carries", "latents", "d_latents", "ids"
PARAMETERS, MOMENTS = "parameters", "moments"
WINDOW = (CARRIES, LATENTS, D_LATENTS, IDS)
"""Categories that live as long as a window."""
CATEGORIES = (*WINDOW, PARAMETERS, MOMENTS)

Key = tuple[int | str, ...]


class Need(NamedTuple):
    """One long-lived tensor of a window."""

    category: str
    key: Key
    """(layer, what) or (layer, what, row)."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def window_needs(
    config: ModelConfig,
    limits: Sequence[tuple[int, int]],
    batch: int,
    dtype: torch.dtype,
    *,
    indexer_kl: bool = False,
    recorded: int | None = None,
) -> Iterator[Need]:
    """Every long-lived tensor of ``batch`` windows side by side, cut at ``limits``.

    Carries enter all chunks; ids are kept of all chunks but the last, which chooses in the backward
    sweep. ``indexer_kl``: pooled keys have gradients too. ``recorded``: of how many tokens this rank
    keeps ids, where it has pieces of every chunk only.
    """
    tokens, chunks = limits[-1][1], len(limits)
    recorded = limits[-1][0] if recorded is None else recorded
    for layer, kind in enumerate(config.layer_types):
        if kind == DSA:
            yield from _dsa_needs(config, layer, tokens, recorded, batch, dtype, indexer_kl)
        else:
            yield from _kda_needs(config, layer, chunks, batch, dtype)
        if config.mlp_layer_types[layer] == SPARSE:
            top = config.num_experts_per_tok
            yield Need(IDS, (layer, "experts"), (batch * recorded * top,), torch.int16)


def _kda_needs(c: ModelConfig, layer: int, chunks: int, batch: int, dtype: torch.dtype) -> Iterator[Need]:
    """Flat: chunk after chunk, [C * B * (W-1) * H*K] three times and [C * B * H * K * K]."""
    tail = chunks * batch * (c.linear_conv_kernel_dim - 1) * c.linear_num_heads * c.linear_head_dim
    for i in range(3):
        yield Need(CARRIES, (layer, i), (tail,), dtype)
    state = chunks * batch * c.linear_num_heads * c.linear_head_dim**2
    yield Need(CARRIES, (layer, 3), (state,), accumulator(dtype))


def _dsa_needs(
    c: ModelConfig, layer: int, tokens: int, recorded: int, batch: int, dtype: torch.dtype, keys: bool
) -> Iterator[Need]:
    pools, wide = -(-tokens // c.index_kpool), accumulator(dtype)
    latents, index = (pools * c.index_kpool, c.kv_lora_rank), (pools, c.index_head_dim)
    for row in range(batch):
        yield Need(LATENTS, (layer, "latents", row), latents, dtype)
        yield Need(LATENTS, (layer, "keys", row), index, dtype)
        yield Need(D_LATENTS, (layer, "d_latents", row), latents, wide)
        if keys:
            yield Need(D_LATENTS, (layer, "d_keys", row), index, wide)
        yield Need(IDS, (layer, "pools", row), (recorded * c.topk_pools,), torch.int32)


def total(needs: Iterable[Need]) -> dict[str, int]:
    """Bytes per category."""
    sums: Counter[str] = Counter()
    for need in needs:
        sums[need.category] += need.nbytes
    return {name: sums[name] for name in WINDOW}


def window_bytes(
    config: ModelConfig,
    length: int,
    batch: int,
    chunk: int,
    dtype: torch.dtype = torch.float32,
    *,
    indexer_kl: bool = False,
) -> dict[str, int]:
    """Bytes per category of ``batch`` windows of ``length`` tokens in chunks of ``chunk``."""
    return total(window_needs(config, bounds(length, chunk), batch, dtype, indexer_kl=indexer_kl))
