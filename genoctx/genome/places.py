"""Where the sequences of an annotation lie in a store, which may hold them whole, in part, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genoctx.errors import UsageError
from genoctx.genome.manifest import Contig
from genoctx.genome.names import require_contigs
from genoctx.genome.select import parse_region
from genoctx.genome.spelling import counterparts

_SHOWN = 5


class Place(NamedTuple):
    """A sequence of an annotation, or a stretch of it, in the store."""

    contig: int
    """Index of the contig."""
    shift: int
    """What to add to a 0-based position of the annotation to get that in ``codes.u8``."""
    length: int | None
    """Bases of the annotated sequence; None where the store holds only a stretch of it."""


class Places:
    """Looks up names; a contig called ``chr5:1001-3000`` of 2,000 bases is a stretch of ``chr5``."""

    def __init__(self, contigs: Sequence[Contig]) -> None:
        self.names = [contig.name for contig in contigs]
        self.starts = np.array([contig.offset for contig in contigs], dtype=np.int64)
        """Where each contig begins in ``codes.u8``: int64 [contigs]."""
        self.ends = self.starts + np.array([contig.length for contig in contigs], dtype=np.int64)
        self._numbers = {contig.name: index for index, contig in enumerate(contigs)}
        self._stretches: dict[str, list[Place]] = {}
        for index, contig in enumerate(contigs):
            whole, start = _stretch(contig)
            if whole:
                self._stretches.setdefault(whole, []).append(Place(index, contig.offset - start, None))
        self._asked: dict[str, list[Place]] = {}

    def of(self, name: str) -> list[Place] | None:
        """Every place of the sequence ``name``; None if the store has nothing of it."""
        found = self._asked.get(name)
        if found is None:
            index = self._numbers.get(name)
            if index is None:
                found = self._stretches.get(name)
            else:
                length = int(self.ends[index] - self.starts[index])
                found = [Place(index, int(self.starts[index]), length)]
            if found is not None:
                self._asked[name] = found
        return found

    def judge(self, matched: int, unknown: Counter[str], path: str) -> str:
        """A remark about features on sequences that the store does not have, or ``""``.

        ``matched`` features were found, ``unknown`` counts the others by name. Raises InputError with both
        sets of names if none matched at all.
        """
        if not unknown:
            return ""
        if not matched:
            require_contigs(unknown, self.names, path)
        listed = ", ".join(list(unknown)[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        same = counterparts(unknown, self.names)
        maybe = "; ".join(f"{name} may be {other} here" for name, other in list(same.items())[:_SHOWN])
        return (
            f"{path}: {sum(unknown.values()):,} features on {len(unknown):,} sequences that the store does not "
            f"have were left out: {listed}" + (f" ({maybe})" if maybe else "")
        )


def _stretch(contig: Contig) -> tuple[str, int]:
    """Name of the whole sequence and 0-based start in it, if ``contig`` is a stretch; else ``("", 0)``."""
    if ":" not in contig.name:
        return "", 0
    try:
        region = parse_region(contig.name)
    except UsageError:  # a name like x:9-3
        return "", 0
    if region is None or region[2] - region[1] != contig.length:
        return "", 0
    return region[0], region[1]
