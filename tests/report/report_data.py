"""Small ledgers and real sequences for the tests of the report."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from genoctx.report.ledger import Ledger, LedgerBuilder

GENOMES = Path(__file__).parents[2] / "data" / "genomes"
HEADER: dict[str, Any] = {
    "model": "nano hybrid",
    "checkpoint": "c0ffee",
    "step": 200,
    "store": "stores/g",
    "store_digest": "5704e",
    "windows": "g.bed",
    "windows_digest": "7ab1e",
    "split": "holdout",
    "context": 1024,
    "chunk": 256,
    "created": "2026-12-01T00:00:00+00:00",
    "command": "genoctx eval runs/g",
}
BLOCK = 64
Windows = list[tuple[str, int, int]]


def read_genome(name: str) -> np.ndarray:
    """uint8 codes of a file of data/genomes: A, C, G, T = 0..3, the rest 4."""
    table = np.full(256, 4, dtype=np.uint8)
    for code, letter in enumerate(b"ACGT"):
        table[letter] = table[letter | 0x20] = code
    lines = gzip.decompress((GENOMES / name).read_bytes()).split(b"\n")
    return table[np.frombuffer(b"".join(line for line in lines if not line.startswith(b">")), np.uint8)]


def losses(windows: Windows, seed: int, level: float = 1.3, spread: float = 0.1) -> list[np.ndarray]:
    """Made-up nats for all but the first base of each window, alike within 64 bases."""
    rng = np.random.default_rng(seed)
    made = []
    for _, start, end in windows:
        local = np.repeat(rng.normal(level, spread, (end - start) // BLOCK + 1), BLOCK)[: end - start - 1]
        made.append(local + rng.uniform(-0.2, 0.2, end - start - 1))
    return made


def make_ledger(
    windows: Windows,
    nats: Iterable[np.ndarray],
    *,
    pieces: int = 1 << 20,
    contigs: list[str] | None = None,
    block: int = BLOCK,
    **header: Any,
) -> Ledger:
    """A ledger of ``nats`` (all bases but each window's first), added in ``pieces`` bases at a time."""
    contigs = contigs or list(dict.fromkeys(contig for contig, _, _ in windows))
    builder = LedgerBuilder({**HEADER, **header}, contigs, block)
    for index, ((contig, start, end), values) in enumerate(zip(windows, nats, strict=True)):
        builder.window(index, contig, start, end)
        builder.exclude("first base of its window", 1)
        for at in range(0, len(values), pieces):
            part = values[at : at + pieces]
            positions = np.arange(start + 1 + at, start + 1 + at + len(part))
            builder.add(index, contig, positions, part, part - 0.01)
    return builder.build()
