"""Memory limits of the control groups this process is in, version 1 and 2.

A batch system puts a job into nested groups, each with a limit of its own; inside a container the group's
own folder is the root of the file system. So every folder from the process's group up to the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60  # version 1 writes a huge number for no limit


def room(root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[int]:
    """Bytes that each limited group above this process may still take; empty where nothing limits it."""
    found = []
    for folder, limit, used, cache in _groups(root, membership):
        try:
            text = (folder / limit).read_text().strip()
            if text == "max" or int(text) >= _UNLIMITED:
                continue
            found.append(max(0, int(text) - int((folder / used).read_text()) + _reclaimable(folder, cache)))
        except (OSError, ValueError):
            continue
    return found


def _groups(root: Path, membership: Path) -> Iterator[tuple[Path, str, str, str]]:
    """(folder, file of the limit, file of the usage, name of the file cache) of every group, inner ones first."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    inside = {"v2": "/", "v1": "/"}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            inside["v2"] = path
        elif "memory" in controllers.split(","):
            inside["v1"] = path
    for folder in _upwards(root, inside["v2"]):
        yield folder, "memory.max", "memory.current", "inactive_file"
    for folder in _upwards(root / "memory", inside["v1"]):
        yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def _upwards(root: Path, inside: str) -> Iterator[Path]:
    parts = [p for p in inside.split("/") if p and p != ".."]
    for n in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:n])


def _reclaimable(folder: Path, name: str) -> int:
    """Bytes of file cache in a group that the kernel gives back before it kills anything."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(counts.get(name, 0))
