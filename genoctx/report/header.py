"""The header of a report: what was evaluated on what, and what of it was counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from genoctx.report.ledger import Ledger
from genoctx.report.sources import Beside


def header_of(after: Ledger, before: Ledger | None, beside: Beside) -> dict[str, Any]:
    """JSON values; bases are counted over the windows of ``after``."""
    spans = after.windows[:, 3] - after.windows[:, 2]
    totals = after.totals()
    excluded = sum(after.excluded.values())
    return {
        "after": after.header,
        "before": before.header if before is not None else None,
        "contigs": [after.contigs[i] for i in np.unique(after.contig)],
        "windows": totals.windows,
        "window_bases": int(spans.sum()),
        "scored_bases": totals.count,
        "excluded": dict(after.excluded),
        "unaccounted_bases": int(spans.sum()) - totals.count - excluded,
        "overlapping_bases": int(spans.sum()) - _covered(after.windows),
        "table": dict(beside.table) if beside.table is not None else None,
        "leakage": dict(beside.leakage) if beside.leakage is not None else None,
        "machine": dict(beside.machine) if beside.machine is not None else None,
    }


def _covered(windows: np.ndarray) -> int:
    """Bases that lie in at least one window."""
    covered, at = 0, (-1, 0)
    for contig, start, end in sorted(windows[:, 1:].tolist()):
        free = max(start, at[1]) if contig == at[0] else start
        covered += max(0, end - free)
        at = (contig, max(end, free))
    return covered
