"""The plan before step 0 of a run: refuse what would not fit, or choose settings that do (``stream.fit``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from genoctx.config import Config
from genoctx.errors import WouldNotFit
from genoctx.run.machine import peak_resident_memory
from genoctx.run.monitor import Monitor
from genoctx.run.plan import limits_of, measure_chunk, settings_of
from genoctx.run.plan_answer import answer
from genoctx.run.plan_fit import changes
from genoctx.run.plan_layout import Settings
from genoctx.run.plan_local import local_fleet


def fitted(config: Config, length: int, device: str, out: Path, monitor: Monitor) -> Config:
    """``config``, or with ``stream.fit = "auto"`` one whose chunks and homes fit this machine.

    ``device``: the kind that the model will be on, ``cpu`` or ``cuda``; ``length``: tokens of the longest
    window. Raises WouldNotFit (exit 4) before anything is allocated. A GPU that the device table does not
    know is not judged.
    """
    mode = config.stream.fit
    fleet = local_fleet("", device)
    if mode == "off" or (device == "cuda") != (fleet.device is not None):
        return config
    folder = config.homes.folder or out.absolute().parent
    limits = limits_of(fleet, folder=folder if folder.is_dir() else Path())
    if fleet.device is None:  # what this process has taken already is in the plan, too
        limits = replace(limits, host=limits.host + peak_resident_memory())
    given, auto = settings_of(config, fleet, length), mode == "auto"
    measured = measure_chunk(config, fleet, length, given.chunk) if auto else None
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


def _with(config: Config, chosen: Settings) -> Config:
    """``config`` with chunk and homes as chosen."""
    names = ("carries", "latents", "d_latents", "ids", "parameters", "moments")
    places = {name: chosen.homes.get(name, "device") for name in names}
    return replace(
        config,
        stream=replace(config.stream, chunk=chosen.chunk),
        homes=replace(config.homes, **places),  # type: ignore[arg-type]
    )
