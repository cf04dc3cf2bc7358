"""A report with every section, from made-up losses: small enough for golden files."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from report_data import BLOCK, HEADER, losses

from genoctx.report.context_ledger import ContextBuilder, ContextLedger
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.report.seeds import SeedRun
from genoctx.report.sources import Beside, leakage_of
from genoctx.report.tables import build_report

WINDOWS = [("chr5", 6_400, 14_592), ("chr5", 14_592, 22_784), ("chr<X>", 512, 8_704)]
STRATA = ("mask/unmasked", "mask/soft-masked", "gc/4", "gc/5", "region/intergenic", "region/CDS1")
TABLE = {
    **{"store": "stores/g", "store_digest": "5704e", "context": 8192, "stride": 8192, "guard": 0},
    **{"holdout": "contigs", "max_n": 0.05, "lost_to_n": 0, "leak_k": 31, "leak_sampled": "1/1"},
    **{
        "leak_kmers": 24_000,
        "leak_limit": 0.01,
        "leak_share": 0.002,
        "leak_error": 0.0,
        "leak_distinct": 0.002,
    },
}
MACHINE = {
    "machine": {"system": "Linux", "arch": "x86_64", "cpus": 2, "memory_bytes": 24 << 30},
    "versions": {"genoctx": "0.1.0", "torch": "2.13.0"},
}


def full_ledger(level: float, strand: str = "+", **header: Any) -> Ledger:
    """All parts of a ledger; ``level`` is the mean loss in nats, and the seed."""
    builder = LedgerBuilder(
        {**HEADER, "strand": strand, **header}, ["chr5", "chr<X>"], BLOCK, strata=STRATA, calibrate=True
    )
    for index, ((contig, start, end), nats) in enumerate(
        zip(WINDOWS, losses(WINDOWS, round(1000 * level), level, 0.05), strict=True)
    ):
        builder.window(index, contig, start, end, strand)
        builder.exclude("first base of a window", 1)
        first = start if strand == "-" else start + 1
        at = np.arange(first, first + len(nats))
        strata = np.stack([at // 300 % 2, 2 + at // 1024 % 2, 4 + at // 500 % 2])
        p = np.exp(-nats)
        chances = np.repeat(((1 - p) / 3)[:, None], 4, axis=1)
        truth = at % 4
        chances[np.arange(len(at)), truth] = p
        builder.add(index, contig, at, nats + 0.01, nats, strata=strata, chances=chances, truth=truth)
    return builder.build()


def context_ledger(level: float) -> ContextLedger:
    """Novel bases gain a little from context and seen ones much."""
    contexts = (1024, 4096, 8192)
    builder = ContextBuilder({**HEADER}, ["chr5", "chr<X>"], contexts, BLOCK)
    for i, gain in enumerate((0.0, 0.02, 0.03)):
        for index, (window, nats) in enumerate(zip(WINDOWS, losses(WINDOWS, 4, level, 0.05), strict=True)):
            at = np.arange(window[2] - 4096, window[2])
            seen = (at // 200 % 5 == 0).astype(np.int64)
            noise = np.sin(at / (40 + 9 * i)) * 0.01
            adaptive = nats[-4096:] + 0.02 - 2 * gain * (0.1 + 12 * seen) - noise
            builder.add(i, index, window, at, seen, nats[-4096:] - gain * (1 + 8 * seen) + noise, adaptive)
    return builder.build()


def metrics(steps: int = 40) -> list[dict[str, Any]]:
    """Lines as a run writes them, one loss not finite."""
    return [
        {
            "step": step,
            "bases": 8191 * step,
            "loss_bits": None if step == 7 else 1.9 + 0.4 * math.exp(-step / 8),
            "bases_per_s": 50_000.0 + 500 * (step % 5),
            "host_peak_bytes": (1 << 30) + 1000 * step,
        }
        for step in range(1, steps + 1)
    ]


def baseline(level: float, **about: Any) -> Ledger:
    """A baseline on the bases of ``full_ledger``, divided by stratum."""
    made = full_ledger(level)
    nats = made.nats_acgt_sum
    assert made.strata is not None
    strata = dataclasses.replace(made.strata, nats_full_sum=made.strata.nats_acgt_sum)
    bare = {"strata": strata, "positions": None, "calibration": None}
    return dataclasses.replace(made, header={**HEADER, **about}, nats_full_sum=nats, **bare)


def full_report(**header: Any) -> dict[str, Any]:
    """Every section has data."""
    before, after = full_ledger(1.33, step=0, checkpoint="0ld"), full_ledger(1.27)
    cv = {"bits": [1.98 - 0.01 * k + 0.001 * k * k for k in range(12)], "folds": 4, "folds_are": "contigs"}
    baselines = {
        "order-0": baseline(1.38, order=0, train_bases=1_234_567),
        "order-5": baseline(
            1.35, order=5, train_bases=1_234_567, cross_validation={**cv, "scored_bases": 400_000}
        ),
        "adaptive": baseline(1.31, order=11, copy=[12, 24]),
    }
    beside = Beside(
        reverse=full_ledger(1.28, strand="-"),
        contexts=context_ledger(1.27),
        contexts_before=context_ledger(1.33),
        table=TABLE | header,
        leakage=leakage_of(TABLE | header),
        machine=MACHINE,
        metrics=metrics(),
        held_out=[before, after],
    )
    runs = [
        SeedRun(f"runs/seed{i}", i, made, before)
        for i, made in enumerate((after, *(full_ledger(level, checkpoint=level) for level in (1.268, 1.273))))
    ]
    return build_report(before, after, baselines, block=512, test=True, runs=runs, beside=beside)
