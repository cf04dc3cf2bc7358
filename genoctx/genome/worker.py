"""``python -m genoctx.genome.worker`` reads files for another process, one after the other.

Standard input brings pickled tasks: folder, path and options. For each the files of a store and ``part`` are
left in the folder, and standard output tells in 8-byte numbers: above 0 bytes that were read, then ``DONE``,
or ``FAILED``, whose reason the parent will find out for itself. The end of standard input is the end.
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

DONE, FAILED = 0, -1

_PART = "part"


def load_part(folder: Path) -> Part:
    """What a worker left in ``folder``."""
    part: Part = pickle.loads((folder / _PART).read_bytes())
    return part


def _work(folder: Path, path: str, options: ReadOptions) -> int:
    seen: dict[str, str] = {}
    try:
        selection = Selection(options)
        with StoreBuilder(folder, durable=False) as builder, no_collector():
            file = read_file(path, builder, seen, options, selection, _tell)
            built = builder.finish()
        part = Part(file, built, seen, selection.names)
        (folder / _PART).write_bytes(pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL))
    except (GenoctxError, OSError):
        return FAILED
    return DONE


def _tell(number: int) -> None:
    try:
        os.write(1, number.to_bytes(8, sys.byteorder, signed=True))
    except BrokenPipeError:  # the parent is dead
        os._exit(1)


def _main() -> None:
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _tell(_work(*task))


if __name__ == "__main__":
    _main()
