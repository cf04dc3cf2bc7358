"""Seconds of a window and of an optimizer step for given settings: arithmetic, links, and what they move.

Weights that leave the device come back for every chunk: traffic is their bytes times three passes (forward
sweep, recomputation, backward) times the number of chunks. That is where streaming loses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from genoctx.config import Config
from genoctx.model.count import count_experts, count_parameters
from genoctx.run import plan_bytes as b
from genoctx.run.devices import CPU_DISK_RATE, Device, Fleet, cpu_count
from genoctx.run.plan_flops import STREAMED, STREAMED_LORA, forward_flops
from genoctx.run.plan_layout import DISK, HOST, Layout, Settings
from genoctx.run.plan_time import Range, arithmetic, combine

ADAMW_BYTES = 30
"""Per parameter of a float32 step: gradient read, master and two averages read and written, weight written."""
HOST_MEMORY_RATE = 200e9
"""Bytes/s of one node's memory for an optimizer step on the host; CPUs with few cores reach far less."""
CPU_MEMORY_RATE = 8e9
"""Bytes/s of one core."""
LAUNCHES, LAUNCHES_IN_PIECES = 220, 400
"""Kernels of a layer's forward pass on a GPU, counted roughly, of one process and where a rank has two pieces of a
chunk; and seconds that each costs at worst."""
LAUNCH_SECONDS = 6e-6
CPU_CALLS = (40e-6, 150)
"""Seconds and number of torch calls of a layer's forward pass on a CPU."""


@dataclass(frozen=True)
class Cost:
    """What one window costs a group of ``cp`` devices."""

    seconds: Range
    """Both sweeps."""
    optimizer: Range
    """Seconds of a step's update, once for all its windows."""
    parts: dict[str, float]
    """Seconds by what would bind if it stood alone, at the slow end."""
    traffic: dict[str, int]
    """Bytes that one device moves for a window, by link."""

    @property
    def binding(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def cost(config: Config, fleet: Fleet, length: int, s: Settings, layout: Layout) -> Cost:
    """Seconds and traffic of one micro-batch of windows of ``length`` tokens."""
    c, device = config.model, fleet.device
    chunks = math.ceil(length / s.chunk)
    flops = forward_flops(c, length)
    work = STREAMED_LORA if s.lora_rank else STREAMED
    cores = config.stream.threads or cpu_count()
    compute = arithmetic(work, flops, config.train.batch * length / s.cp, device, cores)
    overhead = _overhead(c.num_hidden_layers, chunks, device, s.cp)
    compute = compute + Range(0, overhead)
    traffic = _traffic(config, fleet, s, chunks, layout)
    rates = _rates(fleet)
    times = {link: nbytes / rates[link] for link, nbytes in traffic.items() if nbytes}
    parts = {"arithmetic": compute.slow, **times}
    return Cost(combine(compute, list(times.values())), _optimizer(config, fleet, s, layout), parts, traffic)


def _overhead(layers: int, chunks: int, device: Device | None, cp: int) -> float:
    """Seconds of starting kernels: three forward-sized passes and a backward of twice one, per chunk."""
    launches = LAUNCHES if cp == 1 else LAUNCHES_IN_PIECES
    per_layer = launches * LAUNCH_SECONDS if device is not None else CPU_CALLS[0] * CPU_CALLS[1]
    return 4 * layers * chunks * per_layer


def _rates(fleet: Fleet) -> dict[str, float]:
    device = fleet.device
    if device is None:
        return {"memory": CPU_MEMORY_RATE, "disk": CPU_DISK_RATE}
    return {
        "memory": device.memory_rate,
        "host link": device.host_link,
        "disk": device.disk_rate / fleet.in_node,
        "node fabric": device.fabric,
        "network": device.network,
    }


def _traffic(config: Config, fleet: Fleet, s: Settings, chunks: int, layout: Layout) -> dict[str, int]:
    """Bytes per device and window, by link; what is computed on in place moves through memory alone."""
    moved: dict[str, float] = {}
    near_weights = _resident_weights(config, fleet, s)
    if fleet.device is not None:
        moved["memory"] = 3.0 * chunks * near_weights
    in_node = fleet.in_node
    for tier, link in ((HOST, "host link"), (DISK, "disk")):
        if fleet.device is None and tier == HOST:
            continue
        held = layout[tier]
        per_device = 2.0 * (held.get(b.CARRIES, 0) + held.get(b.IDS, 0))
        prefix = held.get(b.LATENTS, 0) + 2 * held.get(b.D_LATENTS, 0)
        per_device += prefix * (1 + chunks / 2)  # half of the prefix on average, for every chunk
        per_device += 2.0 * chunks * held.get(b.GRADIENTS, 0)
        if tier == DISK or s.weights_on_host:
            per_device += (3.0 * chunks - 1) * held.get(b.PARAMETERS, 0)
        moved[link] = moved.get(link, 0.0) + per_device / in_node
    if fleet.count > 1:
        for link, nbytes in _exchange(config, fleet, s, chunks).items():
            moved[link] = moved.get(link, 0.0) + nbytes
    return {link: int(nbytes) for link, nbytes in moved.items()}


def _resident_weights(config: Config, fleet: Fleet, s: Settings) -> float:
    """Bytes of weights that one pass over a chunk reads on one device."""
    c, item = config.model, b.ITEM[config.stream.dtype]
    experts = count_experts(c)
    return item * (count_parameters(c) - experts + experts / min(s.ep, fleet.count))


def _exchange(config: Config, fleet: Fleet, s: Settings, chunks: int) -> dict[str, float]:
    """Bytes one device receives from others per window: weights, expert inputs, latents, affine maps."""
    c, item = config.model, b.ITEM[config.stream.dtype]
    wide = b.accumulator_item(config.stream.dtype)
    n, tokens = fleet.count, config.train.batch * chunks * s.chunk
    experts = count_experts(c)
    rest = count_parameters(c) - experts
    copies = n // s.ep
    gathered = (rest * (1 - 1 / n) + experts / s.ep * (1 - 1 / copies)) * item
    reduced = 0.0 if s.lora_rank else gathered / item * wide
    gather = gathered * (2 if s.keep else 3 * chunks) + reduced * (1 if s.keep else chunks)
    routed = tokens / s.cp * len(c.moe_layers) * c.num_experts_per_tok * c.hidden_size * item
    all_to_all = routed * 2 * 4 * (1 - 1 / s.ep)  # there and back: forward, recomputation, backward twice
    keys = c.index_head_dim / c.index_kpool
    key_gradients = keys * wide if config.loss.indexer_kl > 0 else 0
    rows = c.kv_lora_rank * (item + wide) + keys * item + key_gradients
    latents = tokens * len(c.dsa_layers) * rows * (1 - 1 / s.cp)
    state = c.linear_num_heads * c.linear_head_dim**2 * wide
    # [A | B] of each of a rank's two pieces: in both sweeps, and once backwards (model/parallel/state.py)
    maps = 3.0 * chunks * len(c.kda_layers) * 2 * 2 * state * (s.cp - 1) * config.train.batch
    if fleet.device is None:
        return {"memory": gather + all_to_all + latents + maps}
    outside = fleet.nodes > 1
    group_outside = s.cp > fleet.device.per_node
    experts_outside = s.ep > fleet.device.per_node
    found = {"node fabric": 0.0, "network": 0.0}
    found["network" if outside else "node fabric"] += gather
    found["network" if experts_outside else "node fabric"] += all_to_all
    found["network" if group_outside else "node fabric"] += latents + maps
    return found


def _optimizer(config: Config, fleet: Fleet, s: Settings, layout: Layout) -> Range:
    """Seconds of one AdamW step: its bytes over the slowest thing they pass."""
    weights = b.weights_bytes(
        config.model, config.stream.dtype, indexer_kl=config.loss.indexer_kl > 0, lora_rank=s.lora_rank
    )
    per_node = weights.trainable * ADAMW_BYTES / fleet.nodes
    on_disk = layout[DISK].get(b.MOMENTS, 0) + layout[DISK].get(b.MASTERS, 0)
    on_host = layout[HOST].get(b.MOMENTS, 0)
    if fleet.device is None:
        seconds = per_node / (CPU_MEMORY_RATE * cpu_count()) + 2 * on_disk / CPU_DISK_RATE
        return Range(seconds / 2, 2 * seconds)
    if any(layout[tier].get(b.MASTERS, 0) for tier in (HOST, DISK)):  # the step is taken on the host
        seconds = per_node / HOST_MEMORY_RATE
        seconds += 2 * on_disk / fleet.device.disk_rate
        return Range(seconds / 2, 3 * seconds)
    seconds = per_node / fleet.in_node / fleet.device.memory_rate
    # moments that lie elsewhere come and go, layer by layer
    moved = 2 * (on_host + on_disk) / fleet.in_node / fleet.device.host_link
    moved += 2 * on_disk / fleet.device.disk_rate
    return Range(max(seconds, moved), 3 * (seconds + moved))
