"""Which bases are for training and which are held out, decided before any window is cut."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from genoctx.errors import InputError, UsageError
from genoctx.genome.bed import Span, merge, read_bed
from genoctx.genome.manifest import Contig
from genoctx.genome.names import match_names

TRAIN, HOLDOUT = "train", "holdout"
NONE = "none"

_FRACTION = re.compile(r"0?\.\d+|\d+(?:\.\d+)?%")


@dataclass(frozen=True)
class Interval:
    """Bases ``start..end-1`` of a contig, all of one split. 0-based, half-open."""

    start: int
    end: int
    split: str


@dataclass(frozen=True)
class Split:
    """A partition of contigs: intervals of a split, and guard gaps that belong to none."""

    intervals: dict[str, tuple[Interval, ...]]
    """Per contig, in order."""
    guards: dict[str, tuple[Span, ...]]
    """Per contig: bases taken from train because they lie beside held-out ones."""

    def bases(self, split: str) -> int:
        """Bases of ``split`` in all contigs."""
        return sum(i.end - i.start for each in self.intervals.values() for i in each if i.split == split)


def make_split(
    contigs: Sequence[Contig],
    *,
    holdout: str,
    guard: int = 0,
    block: int,
    seed: int = 0,
    shortest: int = 1,
) -> Split:
    """Divide ``contigs`` into train and held-out intervals.

    ``holdout`` is a comma-separated list of contig names or globs, a fraction (``0.1`` or ``10%``), the
    path of a BED file, or ``none``; a contig's exact name wins over every other reading. A fraction holds
    out whole blocks of ``block`` bases, one stretch per contig, placed by ``seed`` alone. ``guard`` bases
    on each side of a held-out interval are taken from train. Contigs below ``shortest`` bases can be named
    but are in no interval: a draft assembly has a million of them. Raises UsageError or InputError.
    """
    if guard < 0 or block < 1:
        raise UsageError(f"guard {guard} or block {block} is impossible", "both are counted in bases")
    held = held_out(contigs, holdout, block, seed)
    intervals: dict[str, tuple[Interval, ...]] = {}
    guards: dict[str, tuple[Span, ...]] = {}
    for contig in contigs:
        if contig.length >= shortest:
            intervals[contig.name], guards[contig.name] = _divide(contig, held.get(contig.name, []), guard)
    return Split(intervals, guards)


def held_out(contigs: Sequence[Contig], holdout: str, block: int, seed: int) -> dict[str, list[Span]]:
    """The held-out spans of each contig that has any, sorted and merged."""
    names = [contig.name for contig in contigs]
    items = [item.strip() for item in holdout.split(",")]
    if not set(items) <= set(names):
        if holdout.strip() == NONE:
            return {}
        if _FRACTION.fullmatch(holdout.strip()):
            return _by_fraction(contigs, _fraction(holdout.strip()), block, seed)
        if holdout.lower().endswith((".bed", ".bed.gz")) or os.path.isfile(holdout):
            return {name: merge(spans) for name, spans in read_bed(holdout, contigs).items()}
        items = match_names(names, items, "--holdout")
    chosen = set(items)
    return {contig.name: [(0, contig.length)] for contig in contigs if contig.name in chosen}


def _fraction(text: str) -> float:
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 < value < 1:
        raise UsageError(
            f"--holdout {text}: a fraction lies between 0 and 1",
            "for instance 0.1 or 10%; none holds out nothing",
        )
    return value


def _by_fraction(contigs: Sequence[Contig], fraction: float, block: int, seed: int) -> dict[str, list[Span]]:
    """One stretch of whole blocks per contig: few borders, so little guard is lost and little leaks."""
    blocks = {contig.name: contig.length // block for contig in contigs if contig.length >= block}
    total = sum(blocks.values())
    if total < 2:
        raise InputError(
            f"the contigs hold {total} whole blocks of {block:,} bases: a fraction cannot be held out",
            "take a smaller --context, or hold out contigs or the intervals of a BED file",
        )
    wanted = min(max(1, round(fraction * total)), total - 1)
    share = {name: int(fraction * count) for name, count in blocks.items()}
    # largest remainder first; among equals the seed decides, so the order of contigs does not
    order = sorted(
        blocks, key=lambda name: (share[name] - fraction * blocks[name], _draw(seed, name, "order"))
    )
    missing = wanted - sum(share.values())
    for name in [name for name in order if share[name] < blocks[name]][:missing]:
        share[name] += 1
    held = {}
    for contig in contigs:
        n = share.get(contig.name, 0)
        if n:
            first = _draw(seed, contig.name, "place") % (blocks[contig.name] - n + 1)
            # the last block takes the rest of the contig, which is shorter than a block
            last = contig.length if first + n == blocks[contig.name] else (first + n) * block
            held[contig.name] = [(first * block, last)]
    return held


def _draw(seed: int, name: str, purpose: str) -> int:
    """A 64-bit number that depends on nothing but its arguments, on any machine and any version."""
    digest = hashlib.sha256(f"{seed}\t{purpose}\t{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _divide(contig: Contig, held: list[Span], guard: int) -> tuple[tuple[Interval, ...], tuple[Span, ...]]:
    """Intervals and guard gaps of one contig whose held-out spans are sorted and do not touch."""
    if not held:
        return (Interval(0, contig.length, TRAIN),), ()
    intervals: list[Interval] = []
    guards: list[Span] = []
    border, guard_left = 0, 0
    for start, end in [*held, (contig.length, contig.length)]:
        is_held = start < end  # not so at the end of the contig, which needs no guard
        first = min(border + guard_left, start)
        last = max(start - guard if is_held else start, first)
        guards += [span for span in ((border, first), (last, start)) if span[0] < span[1]]
        if first < last:
            intervals.append(Interval(first, last, TRAIN))
        if is_held:
            intervals.append(Interval(start, end, HOLDOUT))
        border, guard_left = end, guard
    return tuple(intervals), tuple(merge(guards))
