"""A ledger's sums by block: the unit that intervals resample and figures draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from genoctx.errors import InputError, UsageError
from genoctx.report.ledger import Ledger, with_contigs


@dataclass(frozen=True, eq=False)
class Blocks:
    """A ledger's sums by block, sorted by contig and start; windows that share a block add up."""

    size: int
    """Bases per block."""
    contigs: tuple[str, ...]
    contig: np.ndarray
    """int64 [blocks]: index into ``contigs``."""
    start: np.ndarray
    """int64 [blocks]: first base of the block."""
    count: np.ndarray
    """int64 [blocks]: scored bases."""
    nats_full: np.ndarray
    """float64 [blocks]."""
    nats_acgt: np.ndarray
    """float64 [blocks]."""

    def __len__(self) -> int:
        return len(self.count)

    def nats(self, loss: str) -> np.ndarray:
        """The sums of the loss called ``full`` or ``acgt``."""
        return {"full": self.nats_full, "acgt": self.nats_acgt}[loss]

    def on(self, contig: int) -> Blocks:
        """The blocks of one contig."""
        here = self.contig == contig
        columns = (self.contig, self.start, self.count, self.nats_full, self.nats_acgt)
        return Blocks(self.size, self.contigs, *(column[here] for column in columns))


def blocks_of(ledger: Ledger, size: int) -> Blocks:
    """A ledger's rows summed into blocks of ``size`` bases, a multiple of its own (else UsageError)."""
    require_multiple(size, ledger.block)
    sums = (ledger.nats_full_sum, ledger.nats_acgt_sum)
    return sum_blocks(ledger.contigs, size, ledger.contig, ledger.block_start, ledger.count, *sums)


def require_multiple(size: int, unit: int) -> None:
    """Raise UsageError unless blocks of ``unit`` bases can be summed into blocks of ``size``."""
    if size < unit or size % unit:
        raise UsageError(
            f"blocks of {size} bases cannot be made from the ledger's blocks of {unit}",
            f"choose a multiple of {unit}, such as --block {8 * unit}",
        )


def sum_blocks(
    contigs: tuple[str, ...],
    size: int,
    contig: np.ndarray,
    block_start: np.ndarray,
    count: np.ndarray,
    nats_full: np.ndarray,
    nats_acgt: np.ndarray,
) -> Blocks:
    """Rows of smaller blocks (or of parts of them) summed into blocks of ``size`` bases; columns as in a ledger."""
    key = np.stack([contig, block_start // size], axis=1)
    found, at = np.unique(key, axis=0, return_inverse=True)
    at = at.reshape(-1)
    counts = np.zeros(len(found), dtype=np.int64)
    np.add.at(counts, at, count)
    full, acgt = (np.bincount(at, weights, minlength=len(found)) for weights in (nats_full, nats_acgt))
    return Blocks(size, contigs, found[:, 0], found[:, 1] * size, counts, full, acgt)


def difference_of_bases(a: Ledger, b: Ledger) -> str:
    """In what the scored windows, blocks and counts of two ledgers differ, in words; empty if in nothing."""
    if a.block != b.block:
        return f"blocks of {a.block} and of {b.block} bases"
    contigs = a.contigs + tuple(name for name in b.contigs if name not in a.contigs)
    x, y = (blocks_of(with_contigs(ledger, contigs), a.block) for ledger in (a, b))
    if not (np.array_equal(x.contig, y.contig) and np.array_equal(x.start, y.start)):
        return f"{len(x)} and {len(y)} blocks, not the same ones"
    unequal = np.flatnonzero(x.count != y.count)
    if len(unequal) == 0:
        return ""
    first = int(unequal[0])
    start = int(x.start[first])
    place = f"{contigs[x.contig[first]]}:{start + 1}-{start + a.block}"
    return f"{x.count[first]} and {y.count[first]} scored bases in {place}"


def require_same_bases(a: Ledger, b: Ledger) -> None:
    """Raise InputError unless both ledgers scored the same blocks and counts: only then are they paired."""
    if differs := difference_of_bases(a, b):
        raise InputError(
            f"the two ledgers scored different bases: {differs}", "evaluate both on the same windows"
        )
