"""What an evaluation found, and its few numbers for ``summary.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genoctx.report.context_ledger import ContextLedger
from genoctx.report.ledger import Ledger, bits_per_base


@dataclass(frozen=True)
class Evaluation:
    """The ledgers of one evaluation."""

    ledger: Ledger
    reverse: Ledger | None
    contexts: ContextLedger | None

    def summary(self) -> dict[str, Any]:
        """The numbers of ``summary.json``."""
        forward = _figures(self.ledger)
        found: dict[str, Any] = {**forward, "windows": len(self.ledger.windows)}
        if self.reverse:
            reverse = _figures(self.reverse)
            found["reverse"] = reverse
            found["both"] = {key: (forward[key] + reverse[key]) / 2 for key in ("bits_full", "bits_acgt")}
        if self.contexts:
            found["contexts"] = _curve(self.contexts)
        return found


def _figures(ledger: Ledger) -> dict[str, Any]:
    sums = ledger.totals()
    return {"bits_full": sums.bits_full, "bits_acgt": sums.bits_acgt, "scored_bases": sums.count}


def _curve(ledger: ContextLedger) -> list[dict[str, Any]]:
    """Bits per base over A, C, G and T of all, of seen and of novel bases, by context."""
    curve = []
    for number, context in enumerate(ledger.contexts):
        here = ledger.context == number
        row: dict[str, Any] = {"context": context, "scored_bases": int(ledger.count[here].sum())}
        parts = {"bits_acgt": here, "seen": here & (ledger.seen == 1), "novel": here & (ledger.seen == 0)}
        for name, chosen in parts.items():
            count = int(ledger.count[chosen].sum())
            row[name] = bits_per_base(float(ledger.nats_acgt_sum[chosen].sum()), count) if count else None
        curve.append(row)
    return curve
