"""What a reader yields: consecutive bases of one contig."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from genoctx.genome.alphabet import LOWER, URACIL


class Piece(NamedTuple):
    """Consecutive bases of one contig. Every contig begins with an empty piece at its header."""

    contig: str
    """The first word after ``>``, or what the options make of it."""
    line: int
    """The header's line, counted from 1."""
    start: int
    """Position of the first base, 0-based."""
    codes: np.ndarray
    """uint8, see ``alphabet``."""
    lower: np.ndarray
    """bool per base: written in lower case."""
    uracils: int = 0
    """How many bases were written U."""


def unpack(contig: str, line: int, start: int, packed: np.ndarray) -> Piece:
    """The piece of ``packed`` bases: uint8, as ``alphabet.PACKED_TABLE`` gives them, all of them legal."""
    lower = (packed & LOWER).astype(bool)
    return Piece(contig, line, start, packed & (LOWER - 1), lower, int(np.count_nonzero(packed >= URACIL)))
