"""Baselines of a ledger from its genome, kept in a file beside it so that a second report is instant."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from genoctx.errors import InputError
from genoctx.report.baseline_ledger import Fetch
from genoctx.report.baselines import MAX_ORDER, TrainPiece, all_baselines
from genoctx.report.ledger import Ledger
from genoctx.report.markov import BACKOFF
from genoctx.report.npz import read_npz, write_npz
from genoctx.report.strata import Strata

KIND = "genoctx-baselines"
FILE = "baselines.npz"
VERSION = 3
"""Raise it when a baseline changes, so that kept ones are computed again."""


class Stretch(Protocol):
    """Half-open bases of a contig: a window."""

    @property
    def contig(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Genome(Protocol):
    """What is needed of a genome store."""

    def codes(self, contig: str, start: int, end: int, /) -> np.ndarray:
        """uint8 codes of a stretch."""


def genome_baselines(
    ledger: Ledger, genome: Genome, training: Iterable[Stretch], keep: Path, strata: Fetch | None = None
) -> dict[str, Ledger]:
    """Baselines on the bases of ``ledger``, those of a fixed order trained on ``training`` windows.

    ``strata`` as for ``baseline_ledger``: without it they are not divided.

    They are kept in the file ``keep`` where it can be written.
    Raises InputError where nothing is there to train on or the genome is not the ledger's.
    """
    pieces: list[TrainPiece] = [
        (contig, genome.codes(contig, start, end)) for contig, start, end in merged_stretches(training)
    ]
    if not pieces:
        raise InputError("the window table has no training windows", "cut the store with `genoctx windows`")
    baselines = all_baselines(ledger, genome.codes, pieces, strata=strata)
    with contextlib.suppress(OSError):  # a read-only place costs time, not baselines
        save_baselines(keep, ledger, baselines)
    return baselines


def merged_stretches(windows: Iterable[Stretch]) -> list[tuple[str, int, int]]:
    """The bases of ``windows``, each once, as sorted (contig, start, end)."""
    merged: list[tuple[str, int, int]] = []
    for contig, start, end in sorted((w.contig, w.start, w.end) for w in windows):
        if merged and merged[-1][0] == contig and start <= merged[-1][2]:
            _, start, last = merged.pop()
            end = max(end, last)
        merged.append((contig, start, end))
    return merged


def save_baselines(path: Path, ledger: Ledger, baselines: dict[str, Ledger]) -> None:
    """Keep the sums of ``baselines``, whose rows are those of ``ledger``."""
    headers = {name: baseline.header for name, baseline in baselines.items()}
    sums = np.stack([[baseline.nats_full_sum, baseline.nats_full_sq_sum] for baseline in baselines.values()])
    arrays = {"sums": sums}
    divided = [baseline.strata.nats_acgt_sum for baseline in baselines.values() if baseline.strata]
    if ledger.strata and len(divided) == len(baselines):
        arrays["strata_sums"] = np.stack(divided)
    meta = {"key": _key(ledger), "names": list(baselines), "headers": headers}
    write_npz(path, KIND, meta, arrays)


def load_baselines(path: Path, ledger: Ledger) -> dict[str, Ledger] | None:
    """The baselines kept for exactly this ledger's genome, windows and bases, or None."""
    try:
        meta, arrays = read_npz(path, KIND, {"sums": "f8"}, {"strata_sums": "f8"})
    except InputError:
        return None  # whatever is wrong with a kept result, it can be computed again
    key = _key(ledger)
    if meta.get("key") != key or None in key.values():
        return None
    divided = arrays.get("strata_sums", [None] * len(meta["names"]))
    return {
        name: dataclasses.replace(
            ledger,
            header=meta["headers"][name],
            nats_full_sum=nats,
            nats_acgt_sum=nats,
            nats_full_sq_sum=squares,
            strata=_divided(ledger, by_stratum),
            positions=None,
            calibration=None,
        )
        for name, (nats, squares), by_stratum in zip(meta["names"], arrays["sums"], divided, strict=True)
    }


def _divided(ledger: Ledger, nats: np.ndarray | None) -> Strata | None:
    """The strata of ``ledger`` with other sums."""
    if ledger.strata is None or nats is None:
        return None
    return dataclasses.replace(ledger.strata, nats_full_sum=nats, nats_acgt_sum=nats)


def _key(ledger: Ledger) -> dict[str, Any]:
    """All that the baselines depend on: the genome, what is trained on, what is scored, and how."""
    rows = hashlib.sha256(repr((ledger.contigs, ledger.block)).encode())
    columns = [ledger.windows, ledger.window, ledger.block_start, ledger.count]
    if strata := ledger.strata:
        rows.update(repr(strata.names).encode())
        columns += [strata.window, strata.block_start, strata.stratum, strata.count]
    for column in columns:
        rows.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return {
        "version": VERSION,
        "store_digest": ledger.header.get("store_digest"),
        "windows_digest": ledger.header.get("windows_digest"),
        "rows": rows.hexdigest(),
        "max_order": MAX_ORDER,
        "backoff": BACKOFF,
    }
