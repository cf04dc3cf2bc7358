"""The machine a plan is for when nobody names one: its GPU, if the driver shows one, or its processor. No torch."""

from __future__ import annotations

import shutil
import subprocess

from genoctx.run.devices import CPU, DEVICES, Fleet, parse_fleet


def local_fleet(named: str, configured: str) -> Fleet:
    """``--device`` where given, else what ``stream.device`` ('auto', 'cpu', 'cuda') means here."""
    if named:
        return parse_fleet(named)
    names = [] if configured == CPU else gpu_names()
    known = [found for found in map(_known, names) if found]
    # ranks of a run are alike; a plan for one process takes one of them
    return parse_fleet(known[0]) if known else Fleet(None)


def gpu_names() -> list[str]:
    """Names of this machine's GPUs as the driver's own tool tells them; empty where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _known(name: str) -> str:
    """``NVIDIA H200`` -> ``h200``; empty for a device the table lacks."""
    squeezed = name.lower().replace(" ", "").replace("geforce", "")
    return next((device for device in DEVICES if device in squeezed), "")
