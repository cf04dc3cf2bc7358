"""Baselines beside the model's loss: Markov models trained on the training windows alone, and what can be
learned within a window.

The order is chosen by cross-validation on the training contigs, never on held-out bases: a high
order that looks harmless in training can be worse than a uniform guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.report.adaptive import AdaptiveModel
from genoctx.report.baseline_ledger import Fetch, baseline_ledger
from genoctx.report.ledger import Ledger
from genoctx.report.markov import MarkovCounts, MarkovModel, score, score_orders

__all__ = [
    "ADAPTIVE",
    "CrossValidation",
    "Fetch",
    "MarkovCounts",
    "MarkovModel",
    "TrainPiece",
    "all_baselines",
    "baseline_ledger",
    "cross_validate",
    "fit_best_order",
    "score",
]

TrainPiece = tuple[str, np.ndarray]
"""Contig name and uint8 codes of one stretch of training sequence (a memory map is fine)."""

ADAPTIVE = "adaptive"
"""The baseline that learns within a window."""
MAX_ORDER = 11
FOLDS = 4
STRETCH = 1 << 18
SCORED_BASES = 1 << 22
"""Cross-validation scores at most about this many bases, in evenly spaced stretches; it counts all."""


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Held-out bits per base on training data for each order, and the counts of all training data."""

    order: int
    """The order with the fewest bits; the lower one where two are equal."""
    bits: tuple[float, ...]
    folds: int
    by_contig: bool
    """Folds are whole contigs; otherwise equal stretches."""
    scored: int
    counts: MarkovCounts

    def as_dict(self) -> dict[str, Any]:
        """JSON values for a ledger's header."""
        scheme = "contigs" if self.by_contig else "stretches"
        return {
            "bits": list(self.bits),
            "folds": self.folds,
            "folds_are": scheme,
            "scored_bases": self.scored,
        }


def fit_best_order(
    train_pieces: Sequence[TrainPiece], max_order: int = MAX_ORDER, folds: int = FOLDS
) -> tuple[int, list[float]]:
    """The order that predicts unseen training data best, and the bits per base of every order."""
    result = cross_validate(train_pieces, max_order, folds)
    return result.order, list(result.bits)


def cross_validate(
    train_pieces: Sequence[TrainPiece], max_order: int = MAX_ORDER, folds: int = FOLDS
) -> CrossValidation:
    """Leave out whole contigs (grouped into ``folds``), or equal stretches if one contig has most bases.

    Raises InputError where there is nothing to train on.
    """
    groups, by_contig = split_folds(train_pieces, folds)
    counts = MarkovCounts(max_order)
    for _, codes in train_pieces:
        counts.add(codes)
    nats, scored = np.zeros(max_order + 1), 0
    for group in groups:
        left_out = MarkovCounts(max_order)
        for codes in group:
            left_out.add(codes)
        counts -= left_out
        model = counts.model()
        for stretch in _sample(group, SCORED_BASES // len(groups)):
            sums, n = score_orders(model, stretch)
            nats, scored = nats + sums, scored + n
        counts += left_out
    if scored == 0:
        raise InputError("the training windows hold no A, C, G or T to count", "check the window table")
    bits = nats / (math.log(2) * scored)
    return CrossValidation(int(bits.argmin()), tuple(bits.tolist()), len(groups), by_contig, scored, counts)


def split_folds(train_pieces: Sequence[TrainPiece], folds: int) -> tuple[list[list[np.ndarray]], bool]:
    """Groups of training sequence to leave out in turn, and whether they are whole contigs."""
    sizes: dict[str, int] = {}
    for contig, codes in train_pieces:
        sizes[contig] = sizes.get(contig, 0) + len(codes)
    total = sum(sizes.values())
    if folds < 2 or total < folds:
        raise InputError(
            f"{total} training bases cannot be split into {folds} folds", "check the window table"
        )
    # a contig with most of the bases leaves too little to train on
    if 2 * max(sizes.values()) > total:
        return _equal_stretches(train_pieces, folds, total), False
    load = [0] * min(folds, len(sizes))
    group_of = {}
    for contig in sorted(sizes, key=lambda name: (-sizes[name], name)):
        group_of[contig] = load.index(min(load))
        load[group_of[contig]] += sizes[contig]
    groups = [[codes for contig, codes in train_pieces if group_of[contig] == g] for g in range(len(load))]
    return groups, True


def _equal_stretches(train_pieces: Sequence[TrainPiece], folds: int, total: int) -> list[list[np.ndarray]]:
    cuts = [total * fold // folds for fold in range(folds + 1)]
    groups: list[list[np.ndarray]] = [[] for _ in range(folds)]
    at = 0
    for _, codes in train_pieces:
        for fold, group in enumerate(groups):
            low, high = max(cuts[fold] - at, 0), min(cuts[fold + 1] - at, len(codes))
            if low < high:
                group.append(codes[low:high])
        at += len(codes)
    return groups


def _sample(group: Sequence[np.ndarray], bases: int) -> list[np.ndarray]:
    """Stretches of ``group``: all of it if it has at most ``bases``, else evenly spaced ones."""
    stretches = [codes[i : i + STRETCH] for codes in group for i in range(0, len(codes), STRETCH)]
    wanted = max(1, bases // STRETCH)
    if sum(map(len, stretches)) <= bases or len(stretches) <= wanted:
        return stretches
    return [stretches[i] for i in np.linspace(0, len(stretches) - 1, wanted).round().astype(int)]


def all_baselines(
    ledger: Ledger,
    fetch: Fetch,
    train_pieces: Sequence[TrainPiece],
    max_order: int = MAX_ORDER,
    strata: Fetch | None = None,
) -> dict[str, Ledger]:
    """``order-0``, the best ``order-k`` and ``adaptive`` on the bases of ``ledger``; headers carry how k was
    chosen. ``strata`` as for ``baseline_ledger``."""
    chosen = cross_validate(train_pieces, max_order)
    baselines = {}
    for order in sorted({0, chosen.order}):
        about: dict[str, Any] = {"train_bases": chosen.counts.bases}
        if order == chosen.order:
            about["cross_validation"] = chosen.as_dict()
        baselines[f"order-{order}"] = baseline_ledger(
            ledger, fetch, chosen.counts.model(order), about, strata
        )
    return {**baselines, ADAPTIVE: baseline_ledger(ledger, fetch, AdaptiveModel(), strata=strata)}
