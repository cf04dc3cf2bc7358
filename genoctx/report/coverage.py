"""Whether a ledger has the windows that its table says it should have, and the bases that the genome has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from genoctx.errors import CheckFailed
from genoctx.genome.codec import scored_bases
from genoctx.genome.windows import Window, WindowTable
from genoctx.report.context_ledger import ContextLedger
from genoctx.report.ledger import Ledger

_AGAIN = "run `genoctx eval` again; ledgers of ranks are merged before they are read"


class Scored(Protocol):
    """What a ledger of any kind says about its windows."""

    @property
    def header(self) -> dict[str, Any]: ...
    @property
    def contigs(self) -> tuple[str, ...]: ...
    @property
    def windows(self) -> np.ndarray: ...


def check_coverage(ledger: Scored, table: WindowTable) -> None:
    """CheckFailed unless ``ledger`` has every window of its split of ``table``, each once, and no other.

    Where its header has a ``limit``, these are the first so many of the split.
    """
    split, limit = str(ledger.header.get("split")), int(ledger.header.get("limit") or 0)
    wanted = [(i, w.contig, w.start, w.end) for i, w in enumerate(table.windows) if w.split == split]
    wanted = wanted[: limit or None]
    _no_place_twice(ledger)
    number = {name: i for i, name in enumerate(ledger.contigs)}
    rows = np.array([(i, number.get(c, -1), a, b) for i, c, a, b in wanted], dtype=np.int64).reshape(-1, 4)
    if np.array_equal(rows, ledger.windows):
        return
    have = {int(row[0]): tuple(row[1:].tolist()) for row in ledger.windows}
    missing = [w for row, w in zip(rows.tolist(), wanted, strict=True) if have.get(row[0]) != tuple(row[1:])]
    more = len(have.keys() - {row[0] for row in rows.tolist()})
    told = [f"{contig}:{start + 1}-{end}" for _, contig, start, end in missing[:3]]
    raise CheckFailed(
        f"the ledger has not the {len(wanted):,} windows of split {split!r}: {len(missing):,} are missing"
        + (f" ({', '.join(told)}{', ...' if len(missing) > len(told) else ''})" if told else "")
        + (f", {more:,} are not of it" if more else ""),
        _AGAIN,
    )


def _no_place_twice(ledger: Scored) -> None:
    """Indices are checked when a ledger is read; the same bases under two of them are found here."""
    places, times = np.unique(ledger.windows[:, 1:], axis=0, return_counts=True)
    for contig, start, end in places[times > 1].tolist():
        raise CheckFailed(
            f"the ledger has the window {ledger.contigs[contig]}:{start + 1}-{end} twice", _AGAIN
        )


def check_accounts(ledger: Ledger) -> None:
    """CheckFailed unless every base of the windows was scored or is left out for a reason.

    Windows that overlap count their bases once each.
    """
    bases = int((ledger.windows[:, 3] - ledger.windows[:, 2]).sum())
    scored, left_out = int(ledger.count.sum()), sum(ledger.excluded.values())
    if scored + left_out != bases:
        raise CheckFailed(
            f"the windows hold {bases:,} bases, of which {scored:,} were scored and {left_out:,} left out for "
            f"a reason: {abs(bases - scored - left_out):,} too {'few' if scored + left_out < bases else 'many'}",
            _AGAIN,
        )


def check_bases(ledger: Ledger | ContextLedger, table: WindowTable, codes: Callable[..., np.ndarray]) -> None:
    """CheckFailed unless the blocks of ``ledger`` have the bases that the genome has to score, each once.

    ``codes(contig, start, end)`` reads the genome, uint8. Of a ``ContextLedger`` these are the bases of the
    second halves, at every context. To be called after ``check_coverage``.
    """
    found = _found(ledger)
    wanted = dict(_expected(ledger, table, codes))
    for index, block in sorted(found.keys() | wanted.keys()):
        have, count = (bases.get((index, block), 0) for bases in (found, wanted))
        if have != count:
            where = f"{table.windows[index].contig}:{block + 1}-{block + ledger.block}"
            raise CheckFailed(
                f"{have:,} bases were scored in the block {where}, the genome has {count:,} to score there",
                _AGAIN,
            )


def _found(ledger: Ledger | ContextLedger) -> dict[tuple[int, int], int]:
    """Scored bases by window and block; contexts have equal ones, which was checked when they were read."""
    if isinstance(ledger, Ledger):
        rows = zip(ledger.window.tolist(), ledger.block_start.tolist(), ledger.count.tolist(), strict=True)
    else:
        last = ledger.context == len(ledger.contexts) - 1
        columns = (ledger.window, ledger.block_start, ledger.count)
        rows = zip(*(column[last].tolist() for column in columns), strict=True)
    found: dict[tuple[int, int], int] = {}
    for window, block, count in rows:
        found[window, block] = found.get((window, block), 0) + count
    return found


def _expected(
    ledger: Ledger | ContextLedger, table: WindowTable, codes: Callable[..., np.ndarray]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Window index and block start, and the bases to score, of every block that has any."""
    late = isinstance(ledger, ContextLedger)
    for index in ledger.windows[:, 0].tolist():
        window = table.windows[index]
        target = _targets(ledger.header, window, codes(window.contig, window.start, window.end), late)
        at, counts = np.unique((window.start + np.flatnonzero(target)) // ledger.block, return_counts=True)
        for block, count in zip((at * ledger.block).tolist(), counts.tolist(), strict=True):
            yield (index, block), count


def _targets(header: Mapping[str, Any], window: Window, codes: np.ndarray, late: bool) -> np.ndarray:
    """Which bases of the window are scored, in contig order: bool [bases]."""
    turned = (window.strand == "-") != (header.get("strand") == "-")
    along = codes[::-1] if turned else codes  # a complement changes no base's being one
    target = scored_bases(along, int(header.get("token_bases", 1)), bool(header.get("prefixed")))
    if late:
        target[: len(target) // 2] = False
    return target[::-1] if turned else target
