"""A plan: what one training step takes on some machine, tier by tier, before anything is allocated. No torch.

Bytes are closed forms (plan_layout.py) but for a processor, where the peak of one chunk is measured on a short
window (plan_probe.py); seconds are a range (plan_cost.py). :func:`genoctx.run.plan_fit.fit` chooses.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genoctx.config import Config, ParallelConfig
from genoctx.model.count import count_parameters
from genoctx.run import plan_bytes as b
from genoctx.run.devices import Fleet
from genoctx.run.machine import available_memory
from genoctx.run.plan_cost import Cost, cost
from genoctx.run.plan_layout import DEVICE, DISK, HOST, RUN_BASE, TIERS, Layout, Settings, lay_out, total
from genoctx.run.plan_probe import Measured, case_of, measure

USABLE = 0.94
"""Of a device's memory: the caching allocator never fills it."""


@dataclass(frozen=True)
class Limits:
    """Bytes there are: of one device, of one node's memory and of its disk."""

    device: int
    host: int
    disk: int
    sources: Mapping[str, str]
    """Where each figure comes from."""

    def of(self, tier: str) -> int:
        return {DEVICE: self.device, HOST: self.host, DISK: self.disk}[tier]


def limits_of(
    fleet: Fleet, host_ram: int = 0, disk: int = 0, folder: Path = Path(), *, here: bool = False
) -> Limits:
    """What ``fleet`` has; given figures beat the device table and this machine's own.

    For a processor, and for devices that are ``here``: memory left within the kernel's estimate and every
    cgroup, free space of ``folder``.
    """
    device = fleet.device
    if device is None or here:
        host, free = available_memory(), shutil.disk_usage(folder).free
        sources = {HOST: "free to this process now", DISK: f"free on the disk of {folder.absolute()}"}
    else:
        host, free = device.host_ram, device.disk
        sources = {HOST: "a DGX-like node", DISK: "a DGX-like node"}
    if device is not None:
        sources[DEVICE] = f"{device.name}, less 6 %"
    if host_ram:
        host, sources[HOST] = host_ram, "--host-ram"
    if disk:
        free, sources[DISK] = disk, "--disk"
    return Limits(0 if device is None else int(device.memory * USABLE), host, free, sources)


@dataclass(frozen=True)
class Plan:
    """One step on windows of ``length`` tokens."""

    fleet: Fleet
    length: int
    batch: int
    settings: Settings
    bytes: Layout
    limits: Limits
    cost: Cost
    measured: Measured | None = None

    def over(self, tier: str) -> int:
        """Bytes by which a tier is too small; negative where there is room."""
        return total(self.bytes[tier]) - self.limits.of(tier)

    @property
    def fits(self) -> bool:
        return all(self.over(tier) <= 0 for tier in TIERS)

    @property
    def tightest(self) -> str:
        """The tier that is fullest for its size."""
        used = {t: total(self.bytes[t]) / max(1, self.limits.of(t)) for t in TIERS if self.bytes[t]}
        return max(used, key=lambda tier: used[tier])

    @property
    def binding(self) -> str:
        """What stands in the way: the memory that is too small, or what takes the longest."""
        return self.cost.binding if self.fits else f"{self.tightest} memory"

    @property
    def windows_at_a_time(self) -> int:
        return self.fleet.count // self.settings.cp * self.batch

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Slow and fast, all devices together, sweeps alone."""
        tokens = self.windows_at_a_time * self.length
        return tokens / self.cost.seconds.slow, tokens / self.cost.seconds.fast


def make_plan(
    config: Config,
    fleet: Fleet,
    length: int,
    limits: Limits,
    settings: Settings,
    *,
    measured: Measured | None = None,
) -> Plan:
    """The plan of ``settings``; for a processor ``measured`` replaces the closed form of one chunk."""
    layout = lay_out(config, fleet, length, settings)
    if measured is not None and fleet.device is None:
        layout = _with_measurement(config, length, settings, layout, measured)
    spent = cost(config, fleet, length, settings, layout)
    if measured is not None and fleet.device is None:
        spent = _scaled(spent, config, fleet, settings, measured)
    return Plan(fleet, length, config.train.batch, settings, layout, limits, spent, measured)


def _with_measurement(config: Config, length: int, s: Settings, layout: Layout, measured: Measured) -> Layout:
    """The layout with base and chunk as a short window showed them: its peak less all that has a closed form."""
    c, kl = config.model, config.loss.indexer_kl > 0
    weights = b.weights_bytes(c, config.stream.dtype, indexer_kl=kl)
    short = b.window_state(
        c, measured.length, config.train.batch, s.chunk, config.stream.dtype, indexer_kl=kl
    )
    known = weights.gradients + weights.masters + weights.moments + sum(short.values())
    host = dict(layout[HOST])
    objects = host[b.BASE] - lay_out(config, Fleet(None), measured.length, s)[HOST][b.BASE]
    host[b.BASE] = measured.base_bytes - weights.parameters + objects + RUN_BASE
    host[b.GRAPH] = max(0, measured.peak_bytes - measured.base_bytes - known)
    return layout | {HOST: host}


def _scaled(spent: Cost, config: Config, fleet: Fleet, s: Settings, measured: Measured) -> Cost:
    """Seconds from those of the short window: one closed form over the other, a fifth to either side."""
    layout = lay_out(config, fleet, measured.length, s)
    short = cost(config, fleet, measured.length, s, layout).seconds
    ratio = (measured.forward_s + measured.backward_s) / ((short.fast + short.slow) / 2)
    middle = (spent.seconds.fast + spent.seconds.slow) / 2 * ratio
    seconds = replace(spent.seconds, fast=0.8 * middle, slow=1.25 * middle)
    return replace(spent, seconds=seconds)


MEASURE_UP_TO = 150e9
"""FLOP of one chunk's forward pass beyond which a processor is not asked to measure it."""


def measure_chunk(config: Config, fleet: Fleet, length: int, chunk: int) -> Measured | None:
    """A short window's step on this processor; None where a plan is for something else or it would take minutes."""
    from genoctx.run.plan_flops import forward_flops

    if fleet.device is not None or config.lora.rank:
        return None
    case = case_of(config, length, chunk).shortened()
    flops = forward_flops(config.model, case.length).total * case.chunk * case.batch
    if flops > MEASURE_UP_TO or 20 * count_parameters(config.model) > available_memory():
        return None
    return measure(case)


def settings_of(config: Config, fleet: Fleet, length: int, lora_rank: int = 0) -> Settings:
    """What ``config`` says; for several devices a layout where it leaves that open, or its own does not divide them."""
    places = {name: getattr(config.homes, name) for name in _HOME_NAMES}
    p, experts = config.parallel, config.model.n_routed_experts
    is_open = fleet.device is not None and (p.dp, p.cp, p.ep) == (0, 1, 1)
    cp, ep = p.cp, p.ep
    if is_open or not divides(p, fleet.count, experts):
        cp, ep = proposed_layout(fleet, experts)
    return Settings(
        chunk=min(config.stream.chunk, length),
        homes={name: where for name, where in places.items() if where != "device"},
        cp=cp,
        ep=ep,
        keep=config.parallel.keep,
        lora_rank=lora_rank or config.lora.rank,
    )


_HOME_NAMES = (b.CARRIES, b.LATENTS, b.D_LATENTS, b.IDS, b.PARAMETERS, b.MOMENTS)


def as_configured(config: Config, fleet: Fleet, settings: Settings) -> Settings:
    """``settings`` with the layout that ``config`` names, to say what has to be changed in it."""
    if fleet.count == 1:
        return settings
    return replace(settings, cp=config.parallel.cp, ep=config.parallel.ep)


def divides(p: ParallelConfig, ranks: int, experts: int) -> bool:
    """Whether the layout that a config asks for is one of so many ranks (genoctx/engine/mesh.py)."""
    return not (
        ranks % p.cp or ranks % p.ep or (p.dp and p.dp * p.cp != ranks) or (p.ep > 1 and experts % p.ep)
    )


def proposed_layout(fleet: Fleet, experts: int) -> tuple[int, int]:
    """cp and ep: as many ranks of a node as divide all of them share a window, as many as possible the experts."""
    n = fleet.count
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return max(d for d in divisors if d <= fleet.in_node), max(d for d in divisors if experts % d == 0)


def to_json(plan: Plan) -> dict[str, Any]:
    """A plan as one JSON object."""
    s, slow_fast = plan.settings, plan.tokens_per_s
    return {
        "device": plan.fleet.name,
        "context": plan.length,
        "settings": {
            "chunk": s.chunk,
            "homes": dict(s.homes),
            "cp": s.cp,
            "dp": plan.fleet.count // s.cp,
            "ep": s.ep,
            "keep": s.keep,
            "lora_rank": s.lora_rank,
        },
        "bytes": plan.bytes,
        "limits": {tier: plan.limits.of(tier) for tier in TIERS if plan.limits.of(tier)},
        "limit_sources": dict(plan.limits.sources),
        "fits": plan.fits,
        "binding": plan.binding,
        "seconds_per_window": [plan.cost.seconds.fast, plan.cost.seconds.slow],
        "optimizer_seconds": [plan.cost.optimizer.fast, plan.cost.optimizer.slow],
        "tokens_per_s": list(slow_fast),
        "traffic_bytes": plan.cost.traffic,
        "slow_seconds": plan.cost.parts,
        "measured": None if plan.measured is None else vars(plan.measured),
    }
