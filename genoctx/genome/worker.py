"""``python -m genoctx.genome.worker FOLDER`` reads one file for another process.

It finds its task in ``FOLDER/task``, builds the files of a store there, reports the bytes it reads on
standard output as 8-byte numbers, and leaves ``FOLDER/part``. A status other than 0 means that it could
not; its parent will find out why.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from genoctx.errors import GenoctxError
from genoctx.genome.builder import StoreBuilder
from genoctx.genome.collector import no_collector
from genoctx.genome.intake import Part, read_file
from genoctx.genome.reader import ReadOptions, Selection

_TASK, _PART = "task", "part"


def write_task(folder: Path, path: str, options: ReadOptions) -> None:
    """Tell the worker in ``folder`` what to read."""
    (folder / _TASK).write_bytes(pickle.dumps((path, options)))


def load_part(folder: Path) -> Part:
    """What the worker in ``folder`` left."""
    part: Part = pickle.loads((folder / _PART).read_bytes())
    return part


def _work(folder: Path) -> None:
    path, options = pickle.loads((folder / _TASK).read_bytes())
    seen: dict[str, str] = {}
    selection = Selection(options)
    with StoreBuilder(folder) as builder, no_collector():
        file = read_file(path, builder, seen, options, selection, _report)
        built = builder.finish(durable=False)
    part = Part(file, built, seen, selection.names)
    (folder / _PART).write_bytes(pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL))


def _report(size: int) -> None:
    try:
        os.write(1, size.to_bytes(8, sys.byteorder))
    except BrokenPipeError:  # the parent is dead
        os._exit(1)


if __name__ == "__main__":
    try:
        _work(Path(sys.argv[1]))
    except (GenoctxError, OSError):
        sys.exit(1)
