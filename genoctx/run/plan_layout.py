"""Every byte of a step by tier and category, for given settings. Closed forms only; nothing is allocated.

Tiers: ``device`` is one accelerator (none for a processor, whose memory is ``host``), ``host`` and ``disk`` are one
node's. Under several devices all parameters are sharded over all of them (genoctx/engine/sharding.py), chunks over
the ``cp`` ranks that share a window; latents and carries are whole on each of these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from genoctx.config import Config
from genoctx.model.count import count_experts, count_parameters
from genoctx.run import plan_bytes as b
from genoctx.run.devices import GIB, Fleet
from genoctx.run.plan_graph import map_bytes, peak_bytes, sizes

DEVICE, HOST, DISK = "device", "host", "disk"
TIERS = (DEVICE, HOST, DISK)
CHECKPOINTS = "checkpoints"
JOURNALS = "unfinished window"
"""What many chunks of a window left, kept for a run that goes on (genoctx/engine/journal.py)."""
STAGED = "copy of a checkpoint"
"""Of many ranks, while it is written."""

MOVABLE = (b.IDS, b.CARRIES, b.MOMENTS, b.PARAMETERS, b.D_LATENTS, b.LATENTS)
"""Categories with a home (``[homes]``), what costs least to move first. The home ``parameters`` holds masters and
gradient sums, and the weights themselves where they need no masters."""

GPU_BASE = 2 * GIB
"""Of one device: its context, the kernels, and what the caching allocator cannot hand out."""
RANK_BASE = 4 * GIB
"""Host memory of one process beside a GPU."""
CPU_BASE = 369 << 20
"""Resident memory of the interpreter with torch for CPUs; a measurement replaces it."""
RUN_BASE = 20 << 20
"""What a run takes beside its steps (command line, table, checkpoints), and its heap over the first eight of them:
-5 to 49 MiB more than was measured of four chunks, for fourteen shapes like the preset micro."""
STEP_BASE = 64 << 20
"""What the first step adds whatever the model: code pages, workspaces of the BLAS library."""
HEAP_FACTOR = 1.52
"""Resident over live bytes of a chunk's activations: the heap never fits exactly (genoctx bench plan)."""
OBJECT_BYTES = 50 << 10
"""Of the interpreter's own objects, per chunk of the window."""


@dataclass(frozen=True)
class Settings:
    """What a plan may choose."""

    chunk: int
    homes: Mapping[str, str] = field(default_factory=dict)
    """Category of :data:`MOVABLE` -> ``host`` or ``file``; absent: on the device."""
    cp: int = 1
    ep: int = 1
    keep: bool = False
    """Gathered weights stay over the chunks of a sweep."""
    lora_rank: int = 0
    weights_on_host: bool = False
    """Weights come from the host for every chunk. The engine cannot do that: to price it, not to choose it."""


Layout = dict[str, dict[str, int]]
"""Bytes by tier and category."""


def lay_out(config: Config, fleet: Fleet, length: int, s: Settings) -> Layout:
    """Where every byte of one training step on windows of ``length`` tokens lies."""
    per_rank = _per_rank(config, fleet, length, s)
    tiers: dict[str, Counter[str]] = {tier: Counter() for tier in TIERS}
    near = HOST if fleet.device is None else DEVICE
    for category, nbytes in per_rank.items():
        far = _far(category, s, config.stream.dtype)
        tier = near if far in (None, "device") else DISK if far == "file" else HOST
        tiers[tier][category] += nbytes * (1 if tier == DEVICE else fleet.in_node)
    if fleet.device is not None:
        tiers[HOST][b.BASE] += RANK_BASE * fleet.in_node
        tiers[HOST][b.TOKENS] += tiers[DEVICE].pop(b.TOKENS, 0) * fleet.in_node
    one = _checkpoint(config, s)
    if (
        fleet.count > 1
    ):  # ranks copy their parts to the host, and go on while these are written; adapters one of them
        tiers[HOST][STAGED] += one if s.lora_rank else -(-one * fleet.in_node // fleet.count)
    tiers[DISK][CHECKPOINTS] += one * (
        config.checkpoint.keep + 1
    )  # those that are kept, and the one being written
    tiers[DISK][JOURNALS] += fleet.count * _journal(per_rank, fleet.count)
    return {tier: {k: v for k, v in tiers[tier].items() if v} for tier in TIERS}


def _journal(per_rank: Mapping[str, int], ranks: int) -> int:
    """One rank's: what the forward sweep left, and the sums of the backward sweep, of many ranks those before, too."""
    sums = per_rank[b.GRADIENTS] + per_rank[b.D_LATENTS]
    return per_rank[b.CARRIES] + per_rank[b.LATENTS] + per_rank[b.IDS] + sums * (2 if ranks > 1 else 1)


def _far(category: str, s: Settings, dtype: str) -> str | None:
    """The home of a category, if it is one that moves."""
    if category in (b.GRADIENTS, b.MASTERS):
        return s.homes.get(b.PARAMETERS)
    if category == b.PARAMETERS:
        if s.weights_on_host:
            return "host"
        # float32 weights are their own masters: where the home is computed on directly, they live in it
        return s.homes.get(b.PARAMETERS) if b.ITEM[dtype] == b.accumulator_item(dtype) else None
    return s.homes.get(category)


def _per_rank(config: Config, fleet: Fleet, length: int, s: Settings) -> dict[str, int]:
    c, dtype, n = config.model, config.stream.dtype, fleet.count
    kl = config.loss.indexer_kl > 0
    weights = b.weights_bytes(c, dtype, indexer_kl=kl, lora_rank=s.lora_rank)
    item, wide = b.ITEM[dtype], b.accumulator_item(dtype)
    parameters, masters = weights.parameters, weights.masters
    if n > 1 and item < wide:  # the float32 parts are parameters and masters in one
        parameters -= weights.trainable * item
        masters = weights.trainable * wide
    state = b.window_state(
        c, length, config.train.batch, s.chunk, dtype, indexer_kl=kl, softmask=config.loss.softmask != 1.0
    )
    state[b.IDS] = -(-state[b.IDS] // s.cp)
    triton = fleet.device is not None
    tokens = config.train.batch * -(-s.chunk // s.cp)
    graph = peak_bytes(c, tokens, sizes(dtype, triton=triton, balance=config.loss.balance > 0))
    graph += map_bytes(c, s.cp, wide) * config.train.batch
    chunks = math.ceil(length / s.chunk)
    return {
        b.PARAMETERS: -(-parameters // n),
        b.GRADIENTS: -(-weights.gradients // n),
        b.MASTERS: -(-masters // n),
        b.MOMENTS: -(-weights.moments // n),
        **state,
        b.GATHERED: _gathered(config, n, s),
        b.GRAPH: graph if triton else int(HEAP_FACTOR * graph) + STEP_BASE,
        b.BASE: GPU_BASE if triton else CPU_BASE + RUN_BASE + chunks * OBJECT_BYTES,
    }


def _gathered(config: Config, n: int, s: Settings) -> int:
    """Whole weights on a rank beside its parts: two layers at a time, or all of them where they are kept."""
    c, dtype = config.model, config.stream.dtype
    item, wide = b.ITEM[dtype], b.accumulator_item(dtype)
    trained = 0 if s.lora_rank else item + wide  # a gradient, and its float32 copy on the way to its owners
    experts = count_experts(c)
    ends = 2 * c.vocab_size * c.hidden_size + c.hidden_size
    rest = count_parameters(c) - experts - ends
    local = experts / s.ep
    if s.weights_on_host:
        layer = (rest + local) / c.num_hidden_layers
        return int(2 * layer * item + ends * item)
    if n == 1:
        return 0
    if s.keep:
        return int((rest + ends + local) * (item + (wide if trained else 0)))
    moe = max(1, len(c.moe_layers))
    layer = rest / c.num_hidden_layers + (local / moe if s.ep < n or not s.ep else 0)
    return int((2 * layer + ends) * item + (layer + ends) * trained)


def _checkpoint(config: Config, s: Settings) -> int:
    """One checkpoint: weights, masters, moments."""
    weights = b.weights_bytes(
        config.model, config.stream.dtype, indexer_kl=config.loss.indexer_kl > 0, lora_rank=s.lora_rank
    )
    one = weights.masters + weights.moments
    return one + (weights.trainable * b.ITEM[config.stream.dtype] if s.lora_rank else weights.parameters)


def total(tier: Mapping[str, int]) -> int:
    return sum(tier.values())
