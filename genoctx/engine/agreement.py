"""Where all ranks of a step can go on together: the latest place that each of them has kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from genoctx.engine.mesh import Mesh


class Place(NamedTuple):
    """How far a step has come; the larger, the further."""

    batch: int = 0
    backward: bool = False
    done: int = 0
    """Chunks of the sweep: of the forward sweep those that are kept, of the backward sweep minus those left."""


START = Place()

_ENTRY = re.compile(r"rank-\d+|(batch-|sums).*\.safetensors")
"""Journals of single ranks, and files of the journal of one process."""


class Alone:
    """One process agrees with itself."""

    generations = 1
    """How many entries are kept of what changes: this one, and those before it."""

    def common(self, places: set[Place]) -> Place:
        """The latest place that everybody has; the beginning is one that all have."""
        return max(places)

    def any(self, flag: bool) -> bool:
        """Whether anybody says so."""
        return flag

    def foreign(self, folder: Path) -> list[Path]:
        """What other numbers of ranks have left beside the journal in ``folder``, and this rank is to remove.

        That of one process lies around those of many, so it takes them along.
        """
        del folder
        return []


class Ranks(Alone):
    """Ranks that walk the same chunks. A rank may be killed between an entry of its own and that of another.

    All make their entries at the same chunks, so no two of them are more than one entry apart.
    """

    generations = 2

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def common(self, places: set[Place]) -> Place:
        return max(set.intersection(*self.mesh.everybodys(places)))

    def foreign(self, folder: Path) -> list[Path]:
        if not self.mesh.first or not folder.parent.is_dir():
            return []
        mine = {f"rank-{rank}" for rank in range(self.mesh.layout.world)}
        return [p for p in folder.parent.iterdir() if _ENTRY.fullmatch(p.name) and p.name not in mine]

    def any(self, flag: bool) -> bool:
        return bool(self.mesh.largest(float(flag))[0])
