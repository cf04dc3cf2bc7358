"""What ``genoctx windows`` does and says about leakage."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from genoctx.cli.console import Console
from genoctx.errors import CheckFailed

if TYPE_CHECKING:
    from genoctx.genome.leakage import Leakage
    from genoctx.genome.store import GenomeStore
    from genoctx.genome.windows import WindowTable

WORST = 5
"""Held-out windows named when too much leaks."""


NOTABLE, COPIES = 0.05, 0.25
"""Shares from which on we warn, and from which on repeats alone are no explanation (docs/splits.md: human
ones were measured to make 6 to 13 %, strains and overlapping windows 88 to 99 %)."""

_REPEATS = "repeats do this in large genomes, and close relatives: docs/splits.md"


class Leak(enum.StrEnum):
    """How the audit looks at the held-out k-mers."""

    sampled = "sampled"
    exact = "exact"
    off = "off"


def audit_table(
    console: Console, store: GenomeStore, table: WindowTable, leak: Leak, k: int
) -> Leakage | None:
    """What leaks; None where there is nothing to compare, or nobody wants to know."""
    from genoctx.genome.leakage import audit, work

    if leak == Leak.off or not (table.split("train") and table.split("holdout")):
        return None
    exact = leak == Leak.exact
    with console.progress("leakage audit", work(table.windows, exact), "bases") as bar:
        return audit(store, table.windows, k=k, exact=exact, progress=bar.advance)


def judge(console: Console, table: WindowTable, leakage: Leakage, limit: float) -> None:
    """Say what leaks; CheckFailed where it is more than ``limit``."""
    share, k = leakage.share, leakage.k
    if share is None:
        console.warn(f"the held-out windows hold no {k}-mer of A, C, G and T: nothing was audited")
        return
    if leakage.one_in == 1:
        basis = f"all {leakage.kmers:,} looked at"
    else:
        basis = f"1 in {leakage.one_in} looked at, standard error {_percent(leakage.error)}"
    what = f"{_percent(share)} of the held-out {k}-mers are in training windows too"
    console.info(f"leakage: {what} ({basis})")
    console.info("         exact copies on either strand; diverged homology is not seen: docs/splits.md")
    if share <= limit:
        if share > NOTABLE:
            console.warn(f"{_percent(share)} is notable: {_REPEATS}")
        return
    held = sorted(table.split("holdout"), key=lambda w: w.leak_fraction or 0, reverse=True)
    rows = [[w.name, _percent(w.leak_fraction or 0)] for w in held[:WORST]]
    console.table("\nheld-out windows with most of them", ["window", f"{k}-mers in training"], rows)
    if share < COPIES:
        advice = f"{_REPEATS}; accept it with a higher --leak-limit"
    else:
        advice = "strains, assemblies or overlapping windows? hold them out together, or leave them out (--contigs)"
    raise CheckFailed(f"{what}, more than --leak-limit {limit:g}", advice)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
