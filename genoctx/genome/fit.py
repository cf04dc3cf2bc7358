"""Does an annotation belong to these bases? Introns begin with GT and end with AG; genes have start and stop.

Another assembly, or coordinates counted from 0 where 1 was meant, leaves almost nothing of that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.alphabet import N_CODE, encode, reverse_complement
from genoctx.genome.gene_models import Models

LEAST = 10
"""Introns, or coding parts, below which nothing is concluded."""
SHARE = 0.5
"""Share that must look as expected. True annotations have 0.9 and more, wrong ones about 0.1 or less."""

_SAMPLE = 20_000
_SHORTEST_INTRON = 20  # a shorter gap is a frameshift
_OUTSIDE, _INSIDE = 4, 4  # bases read on both sides of an end: a codon and a shift
_SHIFTS = tuple(sorted(product((0, -1, 1), repeat=2), key=lambda pair: sum(map(abs, pair))))


@dataclass(frozen=True)
class Fit:
    """What was found at the ends of introns and of coding parts. A share of nothing is 0."""

    introns: int
    """Different introns that were looked at."""
    gt_ag: float
    """Share of them that begin with GT and end with AG."""
    gc_ag: float
    """Share of them that begin with GC and end with AG."""
    coding: int
    """Different complete coding parts that were looked at."""
    starts: float
    """Share of them that begin with ATG, GTG, TTG or CTG."""
    stops: float
    """Share of them with TAA, TAG or TGA at their end or right behind it."""

    @property
    def splice(self) -> float:
        """Share of introns with either consensus."""
        return self.gt_ag + self.gc_ag

    def describe(self) -> str:
        """One line for a summary."""
        parts = []
        if self.introns:
            parts.append(
                f"{self.introns:,} introns: {_percent(self.gt_ag)} GT..AG, {_percent(self.gc_ag)} GC..AG"
            )
        if self.coding:
            parts.append(
                f"{self.coding:,} coding parts: {_percent(self.starts)} with start, "
                f"{_percent(self.stops)} with stop codon"
            )
        return "; ".join(parts) or "neither introns nor complete coding parts"


class _Ends:
    """The bases around the ends of many intervals, read from the file one by one: nothing is mapped."""

    def __init__(self, codes: Path, spans: np.ndarray) -> None:
        # evenly spaced, so that every contig has its share
        spans = spans[:: -(-len(spans) // _SAMPLE)] if len(spans) else spans
        self.forward = spans[:, 2] > 0
        self._left, self._right = (_read(codes, spans[:, column]) for column in (0, 1))

    def __len__(self) -> int:
        return len(self.forward)

    def left(self, size: int, shift: int, outside: int = 0) -> np.ndarray:
        """The first ``size`` bases, or those right before them: uint8 [n, size], as on the forward strand."""
        first = _OUTSIDE + shift - outside
        return self._left[:, first : first + size]

    def right(self, size: int, shift: int, outside: int = 0) -> np.ndarray:
        """The last ``size`` bases, or those right behind them."""
        last = _INSIDE + shift + outside
        return self._right[:, last - size : last]

    def along(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both ends in reading direction, the one that is read first before the other."""
        turned_left, turned_right = (reverse_complement(part.T).T for part in (left, right))
        forward = self.forward[:, None]
        return np.where(forward, left, turned_right), np.where(forward, right, turned_left)


def check_fit(codes: Path, models: Models, path: str) -> Fit:
    """Compare ``models`` of the annotation ``path`` with the bases in the file ``codes``.

    Raises InputError if neither introns nor coding parts look as they should, where there are at least
    ``LEAST`` of them. Some genomes have introns of another kind (those of plastids do not end in AG):
    there the coding parts speak for the annotation.
    """
    spans = models.introns
    introns = _Ends(codes, spans[spans[:, 1] - spans[:, 0] >= _SHORTEST_INTRON])
    coding = _Ends(codes, models.coding)
    starts, stops = _codons(coding, 0, 0)
    fit = Fit(
        introns=len(introns),
        gt_ag=_share(_spliced(introns, b"GT", 0, 0)),
        gc_ag=_share(_spliced(introns, b"GC", 0, 0)),
        coding=len(coding),
        starts=_share(starts),
        stops=_share(stops),
    )
    splice_is_told, coding_is_told = fit.introns >= LEAST, fit.coding >= LEAST
    if splice_is_told and fit.splice < SHARE:
        if not (coding_is_told and _coding_share(coding, 0, 0) >= SHARE):
            raise _splice_misfit(introns, path)
    elif coding_is_told and not splice_is_told and _coding_share(coding, 0, 0) < SHARE:
        raise _coding_misfit(coding, path)
    return fit


def _spliced(introns: _Ends, donor: bytes, left: int, right: int) -> np.ndarray:
    """bool [n]: begins with ``donor`` and ends with AG, were the ends moved by ``left`` and ``right``."""
    first, last = introns.along(introns.left(2, left), introns.right(2, right))
    matches: np.ndarray = (first == encode(donor)).all(axis=1) & (last == encode(b"AG")).all(axis=1)
    return matches


def _splice_share(introns: _Ends, left: int, right: int) -> float:
    return _share(_spliced(introns, b"GT", left, right) | _spliced(introns, b"GC", left, right))


def _codons(coding: _Ends, left: int, right: int) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] twice: a start codon at the beginning; a stop codon at the end or right behind it."""
    first, last = coding.along(coding.left(3, left), coding.right(3, right))
    _, behind = coding.along(coding.left(3, left, outside=3), coding.right(3, right, outside=3))
    starts = (first[:, 0] < N_CODE) & (first[:, 1:] == encode(b"TG")).all(axis=1)
    stops = np.zeros(len(coding), dtype=bool)
    for codon in (b"TAA", b"TAG", b"TGA"):
        for end in (last, behind):
            stops |= (end == encode(codon)).all(axis=1)
    return starts, stops


def _coding_share(coding: _Ends, left: int, right: int) -> float:
    """The worse of both ends: starts that are off by one spoil one end on each strand."""
    starts, stops = _codons(coding, left, right)
    return min(
        _share(np.where(coding.forward, starts, stops)), _share(np.where(coding.forward, stops, starts))
    )


def _share(matches: np.ndarray) -> float:
    return float(matches.mean()) if len(matches) else 0.0


def _percent(share: float) -> str:
    """To a tenth, rounded down: only all of them are 100 %."""
    return f"{int(1000 * share + 1e-9) / 10}%"


def _read(codes: Path, positions: np.ndarray) -> np.ndarray:
    """The bases before and behind each position, N beyond the file: uint8 [n, _OUTSIDE + _INSIDE]."""
    width = _OUTSIDE + _INSIDE
    windows = []
    with codes.open("rb") as file:
        for position in positions.tolist():
            missing = max(0, _OUTSIDE - position)
            data = os.pread(file.fileno(), width - missing, position - _OUTSIDE + missing)
            windows.append((bytes([N_CODE]) * missing + data).ljust(width, bytes([N_CODE])))
    return np.frombuffer(b"".join(windows), dtype=np.uint8).reshape(-1, width)


def _splice_misfit(introns: _Ends, path: str) -> InputError:
    found = _percent(_splice_share(introns, 0, 0))
    what = f"only {found} of {len(introns):,} introns begin with GT (or GC) and end with AG"
    for left, right in _SHIFTS:
        share = _splice_share(introns, left, right)
        if share >= SHARE:  # an intron ends where an exon begins
            return _off_by_one(path, what, share, right, left)
    return _other_assembly(path, what)


def _coding_misfit(coding: _Ends, path: str) -> InputError:
    starts, stops = _codons(coding, 0, 0)
    what = (
        f"of {len(coding):,} coding parts only {_percent(_share(starts))} begin with a start codon "
        f"and {_percent(_share(stops))} end with a stop codon"
    )
    for left, right in _SHIFTS:
        share = _coding_share(coding, left, right)
        if share >= SHARE:
            return _off_by_one(path, what, share, left, right)
    return _other_assembly(path, what)


def _off_by_one(path: str, what: str, share: float, start: int, end: int) -> InputError:
    """``share`` would be as expected, were all starts and ends of features moved by ``start`` and ``end``."""
    moves = [
        f"{verb} one base {'later' if shift > 0 else 'earlier'}"
        for verb, shift in (("began", start), ("ended", end))
        if shift
    ]
    return InputError(
        f"{path} is off by one base: {what}, but {_percent(share)} would if its features {' and '.join(moves)}",
        "GFF and GTF count from 1 and include the end, BED counts from 0 and excludes it: "
        "correct the columns of start and end",
    )


def _other_assembly(path: str, what: str) -> InputError:
    return InputError(
        f"{path} does not fit these sequences: {what}, where 90 % or more are expected",
        "take the annotation of this very assembly (accession and version); to use the intervals as they "
        "are, give a BED with the name of a class in column 4, which is not compared",
    )
