"""Whether a ledger has the windows that its table says it should have."""

from __future__ import annotations

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.windows import WindowTable
from genoctx.report.rows import Ledger


def check_coverage(ledger: Ledger, table: WindowTable) -> None:
    """InputError unless ``ledger`` has every window of its split of ``table``, each once, and no other.

    Where its header has a ``limit``, these are the first so many of the split.
    """
    split, limit = str(ledger.header.get("split")), int(ledger.header.get("limit") or 0)
    wanted = [(i, w.contig, w.start, w.end) for i, w in enumerate(table.windows) if w.split == split]
    wanted = wanted[: limit or None]
    number = {name: i for i, name in enumerate(ledger.contigs)}
    rows = np.array([(i, number.get(c, -1), a, b) for i, c, a, b in wanted], dtype=np.int64).reshape(-1, 4)
    if np.array_equal(rows, ledger.windows):
        return
    have = {int(row[0]): tuple(row[1:].tolist()) for row in ledger.windows}
    missing = [w for row, w in zip(rows.tolist(), wanted, strict=True) if have.get(row[0]) != tuple(row[1:])]
    more = len(have.keys() - {row[0] for row in rows.tolist()})
    told = [f"{contig}:{start + 1}-{end}" for _, contig, start, end in missing[:3]]
    raise InputError(
        f"the ledger has not the {len(wanted):,} windows of split {split!r}: {len(missing):,} are missing"
        + (f" ({', '.join(told)}{', ...' if len(missing) > len(told) else ''})" if told else "")
        + (f", {more:,} are not of it" if more else ""),
        "run `genoctx eval` again; ledgers of ranks are merged before they are read",
    )
