"""What this machine offers to this process: memory within cgroup limits, threads, devices."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from genoctx.run import cgroups


def available_memory() -> int:
    """Bytes this process may still take: the kernel's estimate, or less where a cgroup limits it."""
    return min([_mem_available(), *cgroups.room()])


def total_memory() -> int:
    """Physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_resident_memory() -> int:
    """High-water mark of this process in bytes.

    ``getrusage`` alone would count what the process that started this one had resident.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts it in KiB


def anonymous_memory() -> int:
    """Resident bytes of this process that are not pages of a file; 0 where the kernel does not tell."""
    try:
        return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0


def _mem_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return total_memory()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else total_memory()
