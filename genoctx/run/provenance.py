"""What a result depends on besides the config: inputs by digest, versions, the machine."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import genoctx
from genoctx.run.machine import total_memory

_PACKAGES = ("torch", "triton", "numpy", "safetensors")


@dataclass(frozen=True)
class Inputs:
    """Digests of what a run reads; a resume with others is refused."""

    store: str
    """Digest of the genome store."""
    windows: str
    """Digest of the window table."""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def session(ranks: int = 1) -> dict[str, Any]:
    """One start of a run: when, with which command, on how many ranks, versions and machine."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "ranks": ranks,
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """genoctx, Python and the packages that touch numbers, as installed; nothing is imported."""
    found = {"genoctx": genoctx.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Kind of machine, without its name or user."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "arch": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": total_memory(),
    }
