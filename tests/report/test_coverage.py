"""A report's windows, blocks and bases are those of the window table and of the genome, or there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from report_data import BLOCK, HEADER

from genoctx.errors import CheckFailed
from genoctx.genome.windows import Window, WindowTable
from genoctx.report.context_ledger import ContextBuilder, ContextLedger
from genoctx.report.coverage import check_accounts, check_bases, check_coverage
from genoctx.report.ledger import Ledger, LedgerBuilder

LENGTH = 256
GENOME = np.random.default_rng(11).integers(0, 6, 8 * LENGTH).astype(np.uint8)
"""A third of it is no base."""
GENOME[3 * LENGTH : 3 * LENGTH + 100] = 4
"""A whole block without a base."""


def codes(contig: str, start: int, end: int) -> np.ndarray:
    assert contig == "c"
    return GENOME[start:end]


def window(number: int, strand: str = "+") -> Window:
    split = "train" if number in (0, 5) else "holdout"
    return Window(
        "c", number * LENGTH + 30, (number + 1) * LENGTH + 30, f"w{number}", strand, split, 0.5, 0.0
    )


TABLE = WindowTable(tuple(window(i) for i in range(7)))
HELD_OUT = (1, 2, 3, 4, 6)


def ledger_of(
    indices: Sequence[int] = HELD_OUT, skip: int = -1, strand: str = "+", **header: object
) -> Ledger:
    """Every base of the windows but the first read, and but the ``skip``-th of window 3."""
    builder = LedgerBuilder({**HEADER, "strand": strand, **header}, ["c"], BLOCK)
    for index in indices:
        w = TABLE.windows[index]
        builder.window(index, "c", w.start, w.end)
        target = codes("c", w.start, w.end) < 4
        target[0 if strand == "+" else -1] = False
        if index == 3 and skip >= 0:
            target[np.flatnonzero(target)[skip]] = False
        builder.exclude("no target", LENGTH - int(target.sum()))
        nats = np.ones(int(target.sum()))
        builder.add(index, "c", w.start + np.flatnonzero(target), nats, nats)
    return builder.build()


def contexts_of(indices: Sequence[int] = HELD_OUT, drop: int = 0) -> ContextLedger:
    builder = ContextBuilder(HEADER, ["c"], (64, LENGTH), BLOCK)
    for number in range(2):
        for index in indices:
            w = TABLE.windows[index]
            target = np.flatnonzero(codes("c", w.start, w.end) < 4)
            target = target[target >= LENGTH // 2][drop:]
            builder.add(
                number, index, ("c", w.start, w.end), w.start + target, target % 3 == 0, target * 0.01
            )
    return builder.build()


def test_all_windows_once_with_all_of_their_bases_pass() -> None:
    for made in (ledger_of(), ledger_of(strand="-")):
        check_coverage(made, TABLE)
        check_accounts(made)
        check_bases(made, TABLE, codes)
    check_coverage(ledger_of(HELD_OUT[:2], limit=2), TABLE)
    check_coverage(contexts_of(), TABLE)
    check_bases(contexts_of(), TABLE, codes)


@pytest.mark.parametrize("make", [ledger_of, contexts_of])
def test_windows_skipped_or_foreign_are_refused(make: object) -> None:
    with pytest.raises(CheckFailed, match=r"1 are missing \(c:543-798\)") as caught:
        check_coverage(make((1, 3, 4, 6)), TABLE)  # type: ignore[operator]
    assert caught.value.exit_code == 3 and caught.value.hint
    with pytest.raises(CheckFailed, match="0 are missing, 1 are not of it"):
        check_coverage(make((1, 2, 3, 4, 5, 6)), TABLE)  # type: ignore[operator]


def test_a_window_under_two_indices_is_refused() -> None:
    made = ledger_of()
    twice = made.windows.copy()
    twice[1, 1:] = twice[0, 1:]
    with pytest.raises(CheckFailed, match="has the window c:287-542 twice"):
        check_coverage(dataclasses.replace(made, windows=twice), TABLE)


@pytest.mark.parametrize("change", [1, -3])
def test_bases_without_a_reason_are_refused(change: int) -> None:
    made = ledger_of()
    made.excluded["no target"] += change
    words = f"{abs(change)} too {'many' if change > 0 else 'few'}"
    with pytest.raises(CheckFailed, match=words):
        check_accounts(made)


@pytest.mark.parametrize("strand", ["+", "-"])
def test_a_base_that_was_not_scored_is_found_by_its_block(strand: str) -> None:
    """Although it is accounted for: the genome knows better."""
    made = ledger_of(skip=20, strand=strand)
    check_accounts(made)
    missing = np.flatnonzero(codes("c", 798, 1054) < 4)[20] + 798
    block = missing // BLOCK * BLOCK
    with pytest.raises(
        CheckFailed, match=rf"scored in the block c:{block + 1}-{block + BLOCK}, the genome has"
    ):
        check_bases(made, TABLE, codes)


def test_the_other_strand_leaves_out_the_other_end() -> None:
    made = ledger_of(strand="-")
    made.header["strand"] = "+"
    with pytest.raises(CheckFailed, match="the genome has"):
        check_bases(made, TABLE, codes)


def test_bases_where_the_genome_has_none_are_refused() -> None:
    made = ledger_of()
    block = made.block_start.copy()
    assert not (GENOME[768:832] < 4).any()
    block[(made.window == 3) & (block == 832)] = 768
    with pytest.raises(CheckFailed, match="scored in the block c:769-832, the genome has 0 to"):
        check_bases(dataclasses.replace(made, block_start=block), TABLE, codes)


def test_contexts_that_left_out_a_base_are_refused() -> None:
    with pytest.raises(CheckFailed, match="scored in the block"):
        check_bases(contexts_of(drop=1), TABLE, codes)
