"""The ledger of a baseline on the windows, blocks, strata and bases of a model's ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.codec import scored_bases
from genoctx.report.ledger import Ledger, LedgerBuilder

Fetch = Callable[[str, int, int], np.ndarray]
"""``fetch(contig, start, end)``: uint8 codes of a stretch of the genome, [bases]; or what its bases are,
[facets, bases], as places in the names of a ledger's strata."""

_KEPT = ("store", "store_digest", "windows", "windows_digest", "split", "context", "created")


class Scorer(Protocol):
    """A model that a baseline is made of."""

    def about(self) -> dict[str, Any]:
        """JSON values for a ledger's header."""

    def nats(self, codes: np.ndarray, first: bool = False) -> np.ndarray:
        """Float64 nats of each base of one window of uint8 ``codes``; NaN where there is no target."""


def baseline_ledger(
    ledger: Ledger,
    fetch: Fetch,
    model: Scorer,
    about: Mapping[str, Any] | None = None,
    strata: Fetch | None = None,
) -> Ledger:
    """The ledger of ``model`` on exactly the windows, blocks and bases of ``ledger``.

    ``about`` goes into its header. With ``strata`` it is divided as that of ``ledger`` is. Raises InputError
    where the genome does not give the bases, or the strata, that ``ledger`` counted.
    """
    header = {key: ledger.header[key] for key in _KEPT if key in ledger.header}
    header |= {**model.about(), **(about or {})}
    names = ledger.strata.names if ledger.strata and strata else ()
    letters, prefixed = int(ledger.header.get("token_bases", 1)), bool(ledger.header.get("prefixed"))
    builder = LedgerBuilder(header, ledger.contigs, ledger.block, strata=names)
    for index, contig_index, start, end in ledger.windows.tolist():
        contig = ledger.contigs[contig_index]
        builder.window(index, contig, start, end)
        codes = fetch(contig, start, end)
        if len(codes) != end - start:
            raise InputError(
                f"{contig} has no bases {start + 1} to {end} in this store", "was it ingested again?"
            )
        nats = model.nats(codes, prefixed)
        target = np.flatnonzero(scored_bases(codes, letters, prefixed))
        here = strata(contig, start, end)[:, target] if names and strata else None
        builder.add(index, contig, start + target, nats[target], nats[target], strata=here)
    for reason, bases in ledger.excluded.items():
        builder.exclude(reason, bases)
    baseline = builder.build()
    _require_same(baseline, ledger, ("window", "block_start", "count"), "A, C, G and T", "bases")
    if names:
        keys = ("window", "block_start", "stratum", "count")
        _require_same(baseline.strata, ledger.strata, keys, "annotation", "strata")
    return baseline


def _require_same(a: object, b: object, columns: tuple[str, ...], what: str, counted: str) -> None:
    if not all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns):
        raise InputError(
            f"the genome's {what} are not the {counted} that the ledger counted",
            "the store changed, or only part of the windows was scored",
        )
