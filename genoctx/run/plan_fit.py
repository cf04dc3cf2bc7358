"""Settings that fit: chunk size, homes and layout, the quickest of those by the slow end of the range.

The search is small and complete over a ladder: chunks by powers of two and the middle between two, categories leaving
the device in the order of what it costs (ids, carries, moments, masters and gradients), host before disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from genoctx.config import Config
from genoctx.engine.allowed import are_allowed
from genoctx.run import plan_bytes as b
from genoctx.run.devices import Fleet
from genoctx.run.plan import Limits, Plan, as_configured, make_plan, proposed_layout
from genoctx.run.plan_layout import DEVICE, DISK, HOST, MOVABLE, TIERS, Settings
from genoctx.run.plan_probe import Measured
from genoctx.sizes import format_size

SMALLEST_CHUNK = 256
LARGEST_CHUNK = 1 << 18
MOST_DEVICES = 4096


def fit(
    config: Config,
    fleet: Fleet,
    length: int,
    limits: Limits,
    given: Settings,
    measured: Measured | None = None,
) -> Plan | None:
    """The quickest plan that fits, or None. What ``given`` says of LoRA and ranks stays."""
    return min(_fitting(config, fleet, length, limits, given, measured), key=_rank, default=None)


def _fitting(
    config: Config, fleet: Fleet, length: int, limits: Limits, given: Settings, measured: Measured | None
) -> Iterator[Plan]:
    for candidate in candidates(fleet, length, given):
        # a measurement is of one chunk size; others are told by the closed form scaled to it
        plan = make_plan(config, fleet, length, limits, candidate, measured=None)
        if measured is not None:
            plan = _corrected(config, plan, given, measured)
        if plan.fits:
            yield plan


def _rank(plan: Plan) -> tuple[float, int, int]:
    """Quicker first (to two digits, a window a step), then fewer moved homes, then the smaller chunk."""
    slow = float(f"{plan.cost.seconds.slow + plan.cost.optimizer.slow:.2g}")
    return slow, len(plan.settings.homes), plan.settings.chunk


def _corrected(config: Config, plan: Plan, given: Settings, measured: Measured) -> Plan:
    """The closed form of a chunk times what the measurement said of the given chunk size."""
    ours = make_plan(config, plan.fleet, measured.length, plan.limits, given)
    seen = make_plan(config, plan.fleet, measured.length, plan.limits, given, measured=measured)
    ratio = seen.bytes[HOST][b.GRAPH] / max(1, ours.bytes[HOST][b.GRAPH])
    host = dict(plan.bytes[HOST])
    host[b.GRAPH] = int(host[b.GRAPH] * ratio)
    host[b.BASE] += seen.bytes[HOST][b.BASE] - ours.bytes[HOST][b.BASE]
    return replace(plan, bytes=plan.bytes | {HOST: host})


def candidates(fleet: Fleet, length: int, given: Settings) -> Iterator[Settings]:
    """Everything that may be chosen."""
    keeps = (False, True) if fleet.count > 1 else (False,)
    for chunk in chunks(length, given):
        for homes in ladder(fleet):
            for keep in keeps:
                yield replace(given, chunk=chunk, homes=homes, keep=keep)


def chunks(length: int, given: Settings) -> list[int]:
    """Chunk sizes: the given one, powers of two that give every rank of a window a piece, and between two of them
    their middle."""
    found, size, largest = {min(given.chunk, length)}, SMALLEST_CHUNK * given.cp, min(length, LARGEST_CHUNK)
    while size < 2 * largest:
        found |= {min(size, largest), min(size * 3 // 2, largest)}
        size *= 2
    return sorted(found)


def ladder(fleet: Fleet) -> Iterator[dict[str, str]]:
    """Homes from everything on the device to everything away, of those that the engine can keep."""
    gpu = fleet.device is not None
    for homes in _gpu_ladder() if gpu else _cpu_ladder():
        if are_allowed(homes, gpu=gpu, ranks=fleet.count):
            yield homes


def _cpu_ladder() -> Iterator[dict[str, str]]:
    for n in range(len(MOVABLE) + 1):
        yield dict.fromkeys(MOVABLE[:n], "file")


def _gpu_ladder() -> Iterator[dict[str, str]]:
    window, step = (b.IDS, b.CARRIES), (b.MOMENTS, b.PARAMETERS)
    for n in range(len(window) + 1):
        yield dict.fromkeys(window[:n], "host")
    for away in (step[:1], step):
        yield dict.fromkeys(away, "host")
        yield dict.fromkeys((*window, *away), "host")
    yield dict.fromkeys(window, "host") | dict.fromkeys(step, "file")


def changes(before: Settings, after: Settings) -> list[str]:
    """The edits of a config that lead from one to the other."""
    found = [
        f"parallel.{name}={getattr(after, name)}"
        for name in ("cp", "ep")
        if getattr(after, name) != getattr(before, name)
    ]
    if after.chunk != before.chunk:
        found.append(f'stream.chunk="{format_size(after.chunk)}"'.replace(",", ""))
    for name in MOVABLE:
        where = after.homes.get(name, "device")
        if where != before.homes.get(name, "device"):
            found.append(f'homes.{name}="{where}"')
    if after.keep != before.keep:
        found.append(f"parallel.keep={str(after.keep).lower()}")
    return found


def cheapest_change(
    config: Config,
    plan: Plan,
    measured: Measured | None = None,
) -> str:
    """What would make a plan fit that does not: settings, as few as possible; else memory; else more devices."""
    fitting = [
        found
        for given in _layouts(config, plan)
        for found in _fitting(config, plan.fleet, plan.length, plan.limits, given, measured)
    ]
    before = as_configured(config, plan.fleet, plan.settings)
    least = min(((changes(before, p.settings), _rank(p)) for p in fitting), key=_effort, default=None)
    if least is not None:
        return "set " + ", ".join(least[0])
    if plan.fleet.device is None:
        nearest = _nearest(config, plan)
        edits = ", ".join(changes(plan.settings, nearest.settings))
        return f"{shortage(nearest)}; make room" + (f", and set {edits}" if edits else "")
    more = _more_devices(config, plan)
    device = plan.fleet.device.name
    return f"more devices: {device}:{more}" if more else f"no number of {device} up to {MOST_DEVICES}"


def _layouts(config: Config, plan: Plan) -> list[Settings]:
    """The settings of ``plan`` with its own layout, and with the one that is proposed where a config says nothing."""
    cp, ep = proposed_layout(plan.fleet, config.model.n_routed_experts)
    other = replace(plan.settings, cp=cp, ep=ep)
    return [plan.settings] if other == plan.settings else [plan.settings, other]


def _effort(change: tuple[list[str], tuple[float, int, int]]) -> tuple[int, tuple[float, int, int]]:
    return len(change[0]), change[1]


def from_the_host(config: Config, plan: Plan) -> Plan | None:
    """The quickest plan with weights on the host, coming back for every chunk; None where none fits."""
    given = replace(plan.settings, weights_on_host=True)
    return fit(config, plan.fleet, plan.length, plan.limits, given)


def shortage(plan: Plan) -> str:
    """Which memory is too small, and by how much; empty where all fits."""
    names = {DEVICE: "device memory", HOST: "host memory", DISK: "the disk"}
    over = {names[tier]: plan.over(tier) for tier in TIERS}
    return "; ".join(f"{name} is short of {_amount(n)}" for name, n in over.items() if n > 0)


def _amount(n: int) -> str:
    """``21.4 GiB``; below one in MiB, rounded up."""
    return f"{n / (1 << 30):,.1f} GiB" if n >= 1 << 30 else f"{-(-n // (1 << 20)):,} MiB"


def _nearest(config: Config, plan: Plan) -> Plan:
    """The candidate that lacks the least memory, with as few edits as that takes, and then the least of the disk."""
    plans = (
        make_plan(config, plan.fleet, plan.length, plan.limits, s)
        for s in candidates(plan.fleet, plan.length, plan.settings)
    )

    def lacks(candidate: Plan) -> tuple[int, int, int]:
        missing = {tier: max(0, candidate.over(tier)) for tier in TIERS}
        edits = len(changes(plan.settings, candidate.settings))
        return missing[DEVICE] + missing[HOST], edits, missing[DISK]

    return min(plans, key=lacks)


def _more_devices(config: Config, plan: Plan) -> int:
    """The smallest doubling of the number of devices on which something fits; 0 for none."""
    from genoctx.run.plan import settings_of

    count = plan.fleet.count * 2
    while count <= MOST_DEVICES:
        fleet = replace(plan.fleet, count=count)
        given = settings_of(config, fleet, plan.length, plan.settings.lora_rank)
        if fit(config, fleet, plan.length, plan.limits, given) is not None:
            return count
        count *= 2
    return 0
