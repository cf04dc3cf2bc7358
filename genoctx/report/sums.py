"""Running sums of a ledger in the making: by block and stratum, by position, by probability.

Counts are kept as float64 beside their sums, which is exact below 2^53.
"""

from __future__ import annotations

import numpy as np

from genoctx.report.strata import LETTERS, PROBABILITY_BINS, Calibration, Positions

_POSITION_BINS = 63


class WindowSums:
    """The sums of one window by block, and one bit per base that is already counted."""

    def __init__(self, contig: str, start: int, end: int, strand: str, block: int, strata: int) -> None:
        self.contig, self.start, self.end, self.strand, self.block = contig, start, end, strand, block
        self.first = start // block
        blocks = (end - 1) // block - self.first + 1
        self.count = np.zeros(blocks, dtype=np.int64)
        self.sums = np.zeros((3, blocks))
        self.cells = np.zeros((3, blocks, strata))
        """By block and stratum: count, full nats, acgt nats."""
        self._counted = np.zeros((end - start + 7) // 8, dtype=np.uint8)

    def add(self, positions: np.ndarray, losses: np.ndarray, strata: np.ndarray) -> None:
        """Bases at ``positions`` with ``losses`` [2, bases] and their ``strata`` [facets, bases]."""
        low, high = int(positions.min()), int(positions.max())
        if low < self.start or high >= self.end:
            raise ValueError(f"{self.contig} {low}..{high} is not inside the window {self.start}..{self.end}")
        self._count_once(positions - self.start)
        # sums run over the piece's own blocks alone: a piece may be one base of a long window
        base = low // self.block
        slot = positions // self.block - base
        here = slice(base - self.first, high // self.block - self.first + 1)
        blocks = here.stop - here.start
        self.count[here] += np.bincount(slot, minlength=blocks)
        for row, weights in enumerate((losses[0], losses[1], losses[0] ** 2)):
            self.sums[row, here] += np.bincount(slot, weights, minlength=blocks)
        names = self.cells.shape[2]
        for numbers in strata:
            cell = slot * names + numbers
            for row, weights in enumerate((None, losses[0], losses[1])):
                sums = np.bincount(cell, weights, minlength=blocks * names)
                self.cells[row, here] += sums.reshape(blocks, names)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts, counts and sums [3, blocks] of the blocks with scored bases."""
        blocks = np.flatnonzero(self.count)
        return (self.first + blocks) * self.block, self.count[blocks], self.sums[:, blocks]

    def strata_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block starts, strata and sums [3, cells] of the cells with scored bases."""
        blocks, strata = np.nonzero(self.cells[0])
        return (self.first + blocks) * self.block, strata, self.cells[:, blocks, strata]

    def _count_once(self, offsets: np.ndarray) -> None:
        octet = int(offsets.min()) // 8
        bits = np.unpackbits(self._counted[octet : int(offsets.max()) // 8 + 1])
        times = np.bincount(offsets - 8 * octet, minlength=len(bits)) + bits
        if times.max() > 1:
            twice = self.start + 8 * octet + int(times.argmax())
            raise ValueError(f"base {twice} of {self.contig} was counted before")
        self._counted[octet : octet + len(bits) // 8] = np.packbits(times.astype(np.uint8))


class PositionSums:
    """Behind ``Positions``."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, _POSITION_BINS))

    def add(self, window: WindowSums, positions: np.ndarray, nats: np.ndarray) -> None:
        """Bases of ``window`` with their nats over A, C, G and T."""
        read_at = positions - window.start if window.strand == "+" else window.end - 1 - positions
        bins = np.frexp((read_at + 1).astype(np.float64))[1] - 1  # exact at powers of 2, unlike a logarithm
        for row, weights in enumerate((None, nats)):
            self._sums[row] += np.bincount(bins, weights, minlength=_POSITION_BINS)

    def build(self, longest: int) -> Positions:
        """With bins enough for a window of ``longest`` bases."""
        count, nats = self._sums[:, : longest.bit_length()]
        return Positions(count.astype(np.int64), nats.copy())


class ChanceSums:
    """Behind ``Calibration``."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, PROBABILITY_BINS))

    def add(self, chances: np.ndarray, truth: np.ndarray) -> None:
        """Probabilities [bases, 4] and which of the four each base is."""
        if chances.shape != (len(truth), LETTERS):
            raise ValueError(f"{chances.shape} chances for {len(truth)} bases")
        bins = np.minimum((chances * PROBABILITY_BINS).astype(np.int64), PROBABILITY_BINS - 1)
        hits = bins[np.arange(len(truth)), truth]
        given = bins.ravel()
        for row, (where, weights) in enumerate(((given, None), (given, chances.ravel()), (hits, None))):
            self._sums[row] += np.bincount(where, weights, minlength=PROBABILITY_BINS)

    def build(self) -> Calibration:
        count, p_sum, hits = self._sums
        return Calibration(count.astype(np.int64), p_sum.copy(), hits.astype(np.int64))
