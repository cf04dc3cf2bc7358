"""Files that are either the old ones or the new ones, never half: temp name, fsync, rename."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace ``path`` by ``data`` in one step that survives a crash."""
    raw = data.encode() if isinstance(data, str) else data
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temp.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, obj: Any) -> None:
    """``obj`` as indented JSON, atomically."""
    write_atomic(path, json.dumps(obj, indent=1, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable (a rename alone may be lost with the power)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make every file and folder below ``folder`` durable."""
    for where, _, names in os.walk(folder):
        for name in names:
            with (Path(where) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(where))
