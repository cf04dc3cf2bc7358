"""The plan before step 0 of a run: refuse what would not fit, or choose settings that do (``stream.fit``)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from genoctx.config import Config
from genoctx.errors import WouldNotFit
from genoctx.run.machine import peak_resident_memory
from genoctx.run.monitor import Monitor
from genoctx.run.plan import Plan, as_configured, limits_of, measure_chunk, settings_of
from genoctx.run.plan_answer import answer
from genoctx.run.plan_fit import changes
from genoctx.run.plan_layout import HOST, Settings
from genoctx.run.plan_local import local_fleet

DOUBT = 0.2
"""Of the memory there is: a plan this close to it is measured."""


def fitted(
    config: Config, length: int, device: str, out: Path, monitor: Monitor, ranks: int = 1, here: int = 1
) -> Config:
    """``config``, or with ``stream.fit = "auto"`` one whose chunks and homes fit this machine.

    ``device``: the kind that the model will be on, ``cpu`` or ``cuda``; ``length``: tokens of the longest
    window; ``ranks`` share the run, and ``here`` of them this machine. Raises WouldNotFit (exit 4) before
    anything is allocated. A GPU that the device table does not know is not judged.
    """
    mode = config.stream.fit
    fleet = replace(local_fleet("", device), count=ranks)
    if mode == "off" or (device == "cuda") != (fleet.device is not None):
        return config
    folder = config.homes.folder or out.absolute().parent
    limits = limits_of(fleet, folder=folder if folder.is_dir() else Path(), here=True)
    limits = replace(limits, disk=limits.disk + _held(out, folder))
    if fleet.device is None:  # what this process has taken already is in the plan, too
        host = limits.host + here * peak_resident_memory()
        limits = replace(limits, host=host * ranks // here, disk=limits.disk * ranks // here)
    else:
        limits = replace(limits, host=limits.host * fleet.in_node // here)
    given = as_configured(config, fleet, settings_of(config, fleet, length))
    auto = mode == "auto"
    found = answer(config, fleet, length, limits, given, None, choose=False)
    if ranks == 1 and (auto or _is_close(found.plan)):
        measured = measure_chunk(config, fleet, length, given.chunk)
        found = answer(config, fleet, length, limits, given, measured, choose=auto)
    if not found.plan.fits:
        raise WouldNotFit(
            f"windows of {length:,} tokens would not fit into this machine: {found.problem}",
            f"cheapest change: {found.change}; genoctx plan shows all of it, stream.fit = 'off' tries all the same",
        )
    chosen = found.plan.settings
    if auto and (edits := changes(given, chosen)):
        monitor.info(f"stream.fit: {', '.join(edits)}")
    return _with(config, chosen) if auto else config


def _held(out: Path, folder: Path) -> int:
    """Bytes that the run holds on the disk of ``folder``: its checkpoints make room for those to come."""
    if not (out.is_dir() and folder.is_dir()) or out.stat().st_dev != folder.stat().st_dev:
        return 0
    found = 0
    for path in out.rglob("*"):
        with suppress(OSError):  # another process may remove it meanwhile
            found += path.lstat().st_blocks * 512
    return found


def _is_close(plan: Plan) -> bool:
    """Whether the closed form of a chunk, which is off by up to a fifth on a processor, decides."""
    return plan.fleet.device is None and abs(plan.over(HOST)) < DOUBT * plan.limits.host


def _with(config: Config, chosen: Settings) -> Config:
    """``config`` with chunk, homes and what is gathered as chosen."""
    names = ("carries", "latents", "d_latents", "ids", "parameters", "moments")
    places = {name: chosen.homes.get(name, "device") for name in names}
    return replace(
        config,
        stream=replace(config.stream, chunk=chosen.chunk),
        homes=replace(config.homes, **places),  # type: ignore[arg-type]
        parallel=replace(config.parallel, keep=chosen.keep),
    )
