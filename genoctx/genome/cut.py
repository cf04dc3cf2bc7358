"""Cuts one record into the stretches a user asked for, while it streams by."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from genoctx.genome.piece import Piece, unpack
from genoctx.genome.select import Stretch


class Cutter:
    """The stretches of the record whose header stands at ``line``; they come sorted by start.

    Contigs may not interleave, so where stretches overlap the later one is held back until the earlier is
    complete: only then does memory grow with their length.
    """

    def __init__(self, stretches: Sequence[Stretch], line: int) -> None:
        self._line = line
        self._waiting = deque(stretches)
        self._open: deque[tuple[Stretch, list[Piece]]] = deque()
        """Stretches that began, in order, with the pieces that are held back."""
        self._growing: list[tuple[Stretch, list[Piece]]] = []
        """Those of them that are not complete."""
        self._reach = 0
        self.overlaps = 0
        """Stretches that share bases with an earlier one."""

    def feed(self, position: int, packed: np.ndarray) -> Iterator[Piece]:
        """What the record's bases from ``position`` on (see ``piece.unpack``) add to the stretches."""
        behind = position + packed.size
        while self._waiting and self._waiting[0].start < behind:
            stretch = self._waiting.popleft()
            self.overlaps += stretch.start < self._reach
            self._reach = max(self._reach, stretch.end)
            self._open.append((stretch, [unpack(stretch.name, self._line, 0, packed[:0])]))
            self._growing.append(self._open[-1])
        for stretch, held in self._growing:
            first, last = max(stretch.start, position), min(stretch.end, behind)
            if first < last:
                part = packed[first - position : last - position]
                held.append(unpack(stretch.name, self._line, first - stretch.start, part))
        self._growing = [entry for entry in self._growing if entry[0].end > behind]
        while self._open:
            stretch, held = self._open[0]
            yield from held
            held.clear()
            if stretch.end > behind:
                return
            self._open.popleft()

    def incomplete(self) -> Stretch | None:
        """The first stretch that is not complete yet, if any."""
        return self._open[0][0] if self._open else next(iter(self._waiting), None)
