"""Score windows through the engine into a ledger. Every number of a report comes from here."""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from genoctx.engine.engine import Engine
from genoctx.engine.stream import OnChunk, quiet
from genoctx.files import write_json
from genoctx.genome.windows import Window
from genoctx.model.hybrid import Hybrid
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.run.data import Data, place, read_batch
from genoctx.run.monitor import Monitor

LEDGER_FILE, SUMMARY_FILE = "ledger.npz", "summary.json"


def model_digest(model: Hybrid) -> str:
    """First 16 hex digits of the sha256 over all weights, by name."""
    digest = hashlib.sha256()
    for name, p in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def score_windows(
    engine: Engine,
    data: Data,
    windows: Sequence[Window],
    header: dict[str, object],
    on_chunk: OnChunk = quiet,
) -> Ledger:
    """One streamed pass over every window; targets are A, C, G and T but the window's first base."""
    builder = LedgerBuilder(header, [c.name for c in data.store.contigs])
    words = torch.tensor(data.codec.words)
    indices = {id(w): i for i, w in enumerate(data.table.windows)}
    for window in windows:
        builder.window(indices[id(window)], window.contig, window.start, window.end)
        _score_window(engine, data, window, indices[id(window)], words, builder, on_chunk)
    return builder.build()


def _score_window(
    engine: Engine,
    data: Data,
    window: Window,
    index: int,
    words: torch.Tensor,
    builder: LedgerBuilder,
    on_chunk: OnChunk,
) -> None:
    batch, codec = read_batch(data, [window]), data.codec
    letters, scored = codec.letters, 0
    for part in engine.score(batch, words, letters, on_chunk):
        keep = (batch.targets_BT[0, part.start : part.end] >= 0).numpy()
        word = np.arange(part.start, part.end)[keep] + 1 - len(codec.prefix)
        offset = (word[:, None] * letters + np.arange(letters)).ravel()
        positions = window.start + offset if window.strand == "+" else window.end - 1 - offset
        full, acgt = (nats[0].numpy()[keep].ravel() for nats in part.nats)
        builder.add(index, window.contig, positions, full, acgt)
        scored += offset.size
    length = window.end - window.start
    rest = length % letters
    first = 0 if codec.prefix else min(letters, length - rest)
    builder.exclude("first base of a window" if letters == 1 else "first word of a window", first)
    builder.exclude("no whole word at the end of a window", rest)
    builder.exclude(
        "N or another ambiguity code" + (" in the word" if letters > 1 else ""),
        length - scored - first - rest,
    )


def evaluate(
    model: Hybrid,
    data: Data,
    windows: Sequence[Window],
    *,
    chunk: int,
    step: int,
    out: Path,
    monitor: Monitor,
    on_chunk: OnChunk = quiet,
) -> Ledger:
    """Score ``windows`` and write ``ledger.npz`` and ``summary.json`` into ``out``."""
    inputs = data.inputs
    header: dict[str, object] = {
        "model": describe(model),
        "checkpoint": model_digest(model),
        "step": step,
        "store": str(data.store.path.resolve()),
        "store_digest": inputs.store,
        "windows": str(data.table_path.resolve()),
        "windows_digest": inputs.windows,
        "split": windows[0].split,
        "context": data.table.header["context"],
        "token_bases": data.codec.letters,
        "prefixed": bool(data.codec.prefix),
        "chunk": chunk,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
    }
    total = sum(w.end - w.start for w in windows)
    with monitor.progress(f"eval at step {step}", total, "bases") as bar:

        def watched(tokens: int, sweep: str) -> None:
            bar.advance(tokens)
            on_chunk(tokens, sweep)

        ledger = score_windows(Engine(model, chunk), data, windows, header, watched)
    sums = ledger.totals()
    summary = {
        "schema": 1,
        "step": step,
        "bits_full": sums.bits_full,
        "bits_acgt": sums.bits_acgt,
        "scored_bases": sums.count,
        "windows": sums.windows,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / SUMMARY_FILE, summary)
    ledger.save(out / LEDGER_FILE)  # last: where it is, the evaluation is complete
    first, last = place(windows[0]), place(windows[-1])
    monitor.info(
        f"held-out loss at step {step}: {sums.bits_acgt:.4f} bits/base over {sums.count:,} bases, "
        f"{sums.windows} windows ({first} .. {last})"
    )
    return ledger


def describe(model: Hybrid) -> str:
    """One line on the model's shape."""
    c = model.config
    total = sum(p.numel() for p in model.parameters())
    layers = f"{len(c.kda_layers)} KDA + {len(c.dsa_layers)} DSA layers"
    return f"glm5_next, {total:,} parameters, {layers}, width {c.hidden_size}"
