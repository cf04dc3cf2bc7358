"""Ledgers of parts of one evaluation, such as those of its ranks, added up."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.report.rows import IDENTITY, SUMS, Ledger
from genoctx.report.strata import add_calibration, add_positions, add_rows, add_strata

_PARTS = "merge only parts of one evaluation, such as the ledgers of its ranks"


def merge(a: Ledger, b: Ledger) -> Ledger:
    """The sum of two parts of one evaluation; associative and commutative.

    Strata, positions and calibration stand in the sum where both have them. Raises InputError where the
    two are not parts of one evaluation, or count a base twice.
    """
    if a.block != b.block:
        raise InputError(f"ledgers with blocks of {a.block} and {b.block} bases do not add up", _PARTS)
    header = _merge_headers(a.header, b.header)
    contigs = a.contigs if a.contigs == b.contigs else tuple(sorted({*a.contigs, *b.contigs}))
    a, b = with_contigs(a, contigs), with_contigs(b, contigs)
    windows = np.unique(np.concatenate([a.windows, b.windows]), axis=0)
    if (np.diff(windows[:, 0]) == 0).any():
        raise InputError(
            "one window index stands for two different windows", "merge ledgers of one window table"
        )
    keys, sums = add_rows(map(vars, (a, b)), ("window", "block_start", "contig"), ("count", *SUMS))
    excluded = {
        reason: a.excluded.get(reason, 0) + b.excluded.get(reason, 0)
        for reason in sorted({*a.excluded, *b.excluded})
    }
    merged = Ledger(
        header,
        contigs,
        a.block,
        windows,
        **keys,
        **sums,
        excluded=excluded,
        strata=add_strata(a.strata, b.strata),
        positions=add_positions(a.positions, b.positions),
        calibration=add_calibration(a.calibration, b.calibration),
    )
    if wrong := merged.problem():
        raise InputError(f"the ledgers do not add up: {wrong}", "was one part given twice?")
    return merged


def merge_all(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of one or more parts of one evaluation."""
    parts = iter(ledgers)
    total = next(parts)
    for part in parts:
        total = merge(total, part)
    return total


def _merge_headers(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    merged = {}
    for key in sorted({*a, *b}):
        values = [header[key] for header in (a, b) if key in header]
        if key in IDENTITY and values[0] != values[-1]:
            raise InputError(f"ledgers of two evaluations: {key} is {values[0]} and {values[-1]}", _PARTS)
        # any rule would do that does not depend on the order
        merged[key] = min(values, key=lambda value: json.dumps(value, sort_keys=True))
    return merged


def with_contigs(ledger: Ledger, contigs: tuple[str, ...]) -> Ledger:
    """``ledger`` with its contigs numbered as in ``contigs``, which holds at least its own."""
    place = {name: i for i, name in enumerate(contigs)}
    number = np.array([place[name] for name in ledger.contigs], dtype=np.int64)
    windows = ledger.windows.copy()
    windows[:, 1] = number[windows[:, 1]]
    return dataclasses.replace(ledger, contigs=contigs, windows=windows, contig=number[ledger.contig])
