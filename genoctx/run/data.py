"""From a store and a window table to the batches of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from genoctx.config import TrainConfig
from genoctx.engine.batch import Batch, no_target, stack_rows
from genoctx.errors import InputError
from genoctx.genome.codec import Codec, read_window
from genoctx.genome.store import GenomeStore
from genoctx.genome.windows import Window, WindowTable, check_store, read_table
from genoctx.model.config import ModelConfig
from genoctx.run.provenance import Inputs
from genoctx.run.sampler import is_reversed, windows_for_step


@dataclass(frozen=True)
class Data:
    """An opened store, the table cut from it, and the token ids of its bases."""

    store: GenomeStore
    table: WindowTable
    table_path: Path
    codec: Codec

    @property
    def inputs(self) -> Inputs:
        return Inputs(
            store=self.store.digest, windows=hashlib.sha256(self.table_path.read_bytes()).hexdigest()
        )


def open_data(store: Path, windows: Path, model: ModelConfig) -> Data:
    """Open both and check that they belong together; InputError or ConfigError otherwise."""
    opened, table = GenomeStore.open(store), read_table(windows)
    check_store(table, opened)
    return Data(opened, table, windows, Codec.for_vocab(model.vocab_size, model.token_bases))


def windows_of(data: Data, split: str, limit: int = 0) -> tuple[Window, ...]:
    """The windows of a split, in table order; InputError when there are none."""
    found = data.table.split(split)
    if not found:
        have = ", ".join(sorted({w.split for w in data.table.windows})) or "none"
        raise InputError(
            f"{data.table_path} has no window of split {split!r} (it has: {have})",
            "cut the table with --holdout, or name another split",
        )
    return found[:limit] if limit else found


def training_pieces(data: Data, context: int, softmask: float = 1.0) -> tuple[list[Window], int]:
    """What a step draws from: training windows, or their pieces of ``context`` bases.

    Pieces with nothing to predict (all N, or all lower case where that counts nothing) are left out and
    counted. A whole window of that kind is refused by name, before the first step.
    """
    windows = windows_of(data, "train")
    if not context:
        for window in windows:
            if not _has_target(data, window, softmask):
                raise no_target(place(window))
        return list(windows), 0
    pieces, empty = [], 0
    for window in windows:
        for start in range(window.start, window.end - context + 1, context):
            name = f"{window.name}+{start - window.start}"
            piece = replace(window, start=start, end=start + context, name=name)
            if _has_target(data, piece, softmask):
                pieces.append(piece)
            else:
                empty += 1
    if not pieces:
        raise InputError(
            f"no training window of {data.table_path} holds {context:,} bases with a target",
            "lower train.context, or set it to 0 for whole windows",
        )
    return pieces, empty


def longest_window(data: Data, context: int) -> int:
    """Tokens of the longest window a run reads: training pieces of ``context`` bases, or whole windows."""
    windows = data.table.windows
    longest = max((w.end - w.start for w in windows), default=0)
    return -(-max(2, context or longest) // data.codec.letters)


def _has_target(data: Data, window: Window, softmask: float) -> bool:
    """Most windows need no look beyond their first bases."""
    beginning = replace(window, end=min(window.start + 256, window.end))
    return any(
        bool((read_window(data.store, part, data.codec, softmask).targets >= 0).any())
        for part in (beginning, window)
    )


def place(window: Window) -> str:
    """``chr5:1-524288``, 1-based, for people."""
    return f"{window.contig}:{window.start + 1}-{window.end}"


def read_batch(data: Data, windows: Sequence[Window], softmask: float = 1.0) -> Batch:
    """Windows of one length side by side; ``softmask`` is what a target of lower case counts."""
    rows, shares = [], []
    for window in windows:
        tokens = read_window(data.store, window, data.codec, softmask)
        rows.append((torch.from_numpy(tokens.ids), torch.from_numpy(tokens.targets), place(window)))
        if tokens.shares is not None:
            shares.append(torch.from_numpy(tokens.shares))
    return stack_rows(rows, shares or None)


def tokens_of(data: Data, window: Window) -> int:
    """How long ``window`` is as a model reads it, its prefix included."""
    return len(data.codec.prefix) + (window.end - window.start) // data.codec.letters


def step_groups(pieces: Sequence[Window], train: TrainConfig, step: int) -> list[list[Window]]:
    """The windows of each micro-batch of step ``step`` (0 is the first): a pure function of seed and step."""
    drawn = []
    for epoch, index in windows_for_step(len(pieces), train.seed, step, train.windows_per_step):
        window = pieces[index]
        if train.rc and is_reversed(train.seed, epoch, index):
            window = replace(window, strand="-" if window.strand == "+" else "+")
        drawn.append(window)
    groups: list[list[Window]] = []
    for start in range(0, len(drawn), train.batch):
        group = drawn[start : start + train.batch]
        for length in sorted({w.end - w.start for w in group}):  # rows of a batch share one length
            groups.append([w for w in group if w.end - w.start == length])
    return groups
