"""Windows through the engine, base by base, and into a ledger: the one pass behind every evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch

from genoctx.engine.batch import Batch
from genoctx.engine.engine import Engine, Scored
from genoctx.engine.stream import OnChunk, quiet
from genoctx.errors import GenoctxError, InputError
from genoctx.genome.alphabet import reverse_complement
from genoctx.genome.codec import NO_TARGET, Codec, scored_bases
from genoctx.genome.windows import Window
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.run.data import Data, place, read_batch, tokens_of
from genoctx.run.strata import strata_of, stratum_names


@dataclass(frozen=True)
class Bases:
    """Scored bases of one window of a batch, from one chunk; arrays of one length."""

    row: int
    """Which window of the batch."""
    offset: np.ndarray
    """int64: bases from where the window is begun to be read."""
    nats_full: np.ndarray
    """float64: over the full vocabulary."""
    nats_acgt: np.ndarray
    """float64: renormalised over A, C, G and T."""
    chances: np.ndarray
    """float32 [bases, 4]: the probabilities of A, C, G, T in reading direction, renormalised."""


@dataclass(frozen=True)
class ScoredWindow:
    """A whole window with the loss of its bases; arrays are in reading direction."""

    index: int
    """In the window table."""
    window: Window
    codes: np.ndarray
    """uint8 [bases]"""
    targets: np.ndarray
    """bool [bases]: which are scored."""
    nats_acgt: np.ndarray
    """float64 [bases]: NaN where nothing is scored."""


OnWindow = Callable[[ScoredWindow], None]


def from_base(batch: Batch, codec: Codec, first: int) -> Batch:
    """``batch`` with what lies before offset ``first`` (a whole number of words) to be read and not scored."""
    skipped = first // codec.letters - _ahead(codec)
    targets = batch.targets_BT.clone()
    targets[:, : max(0, skipped)] = NO_TARGET
    return replace(batch, targets_BT=targets)


def _ahead(codec: Codec) -> int:
    """Position t predicts word t + this."""
    return 1 - len(codec.prefix)


def bases_of(part: Scored, batch: Batch, data: Data) -> Iterator[Bases]:
    """What a chunk says about the bases of ``batch``, row by row."""
    letters, ahead = data.codec.letters, _ahead(data.codec)
    has_target = (batch.targets_BT[:, part.start : part.end] >= 0).numpy()
    for row, keep in enumerate(has_target):
        word = np.arange(part.start, part.end)[keep] + ahead
        offset = (word[:, np.newaxis] * letters + np.arange(letters)).ravel()
        full, acgt, chances = (values[row].numpy()[keep] for values in part.nats)
        yield Bases(row, offset, full.ravel(), acgt.ravel(), chances.reshape(-1, chances.shape[-1]))


def positions_of(window: Window, offset: np.ndarray) -> np.ndarray:
    """Where on the contig the bases at ``offset`` in reading direction lie."""
    return window.start + offset if window.strand == "+" else window.end - 1 - offset


def codes_of(data: Data, window: Window) -> np.ndarray:
    """The bases of ``window`` in reading direction: uint8."""
    codes = data.store.codes(window.contig, window.start, window.end)
    return codes if window.strand == "+" else reverse_complement(codes)


def targets_of(data: Data, codes: np.ndarray) -> np.ndarray:
    """Which bases of a window of ``codes`` are scored: bool [bases]."""
    return scored_bases(codes, data.codec.letters, bool(data.codec.prefix))


def by_index(data: Data, windows: Sequence[Window]) -> dict[int, Window]:
    """``windows`` by their place in the table, in the order given. Raises InputError for one given twice."""
    index_of = {window: index for index, window in enumerate(data.table.windows)}
    found = {index_of[window]: window for window in windows}
    if len(found) != len(windows):
        raise InputError(f"{len(windows) - len(found)} windows are there twice", "score every window once")
    return found


def other_strand(window: Window) -> Window:
    """The same bases, read from the other end."""
    return replace(window, strand="-" if window.strand == "+" else "+")


def score_windows(
    engine: Engine,
    data: Data,
    windows: Mapping[int, Window],
    header: Mapping[str, object],
    on_chunk: OnChunk = quiet,
    on_window: OnWindow | None = None,
) -> Ledger:
    """One streamed pass over every window, by its index in the table; ``on_window`` sees each when scored.

    Targets are A, C, G and T but the window's first base. Raises GenoctxError where the bases that were
    scored are not those. Where many ranks score, the first one's ledger has everything and the others' nothing.
    """
    names = stratum_names(data.store)
    contigs = [contig.name for contig in data.store.contigs]
    builder = LedgerBuilder(header, contigs, strata=names, calibrate=True)
    numbered = list(windows.items())
    lengths = [tokens_of(data, window) for window in windows.values()]

    def read(number: int) -> Batch:
        return read_batch(data, [numbered[number][1]])

    words, letters = torch.tensor(data.codec.words), data.codec.letters
    with closing(engine.score_all(lengths, read, words, letters, on_chunk)) as parts:
        for number, scored in groupby(parts, key=itemgetter(0)):
            index, window = numbered[number]
            builder.window(index, window.contig, window.start, window.end, window.strand)
            batch = read(number)
            bases = (found for _, part in scored for found in bases_of(part, batch, data))
            done = _collect(data, window, index, builder, bases)
            _account(builder, done, data)
            if on_window:
                on_window(done)
    return builder.build()


def _collect(
    data: Data, window: Window, index: int, builder: LedgerBuilder, scored: Iterable[Bases]
) -> ScoredWindow:
    codes = codes_of(data, window)
    strata = strata_of(data.store, window.contig, window.start, window.end)
    nats = np.full(len(codes), np.nan)
    for bases in scored:
        positions = positions_of(window, bases.offset)
        builder.add(
            index,
            window.contig,
            positions,
            bases.nats_full,
            bases.nats_acgt,
            strata=strata[:, positions - window.start],
            chances=bases.chances,
            truth=codes[bases.offset],
        )
        nats[bases.offset] = bases.nats_acgt
    return ScoredWindow(index, window, codes, targets_of(data, codes), nats)


def _account(builder: LedgerBuilder, scored: ScoredWindow, data: Data) -> None:
    """Every base of the window was scored, or is left out for a reason."""
    letters, length = data.codec.letters, len(scored.codes)
    done = ~np.isnan(scored.nats_acgt)
    if not np.array_equal(done, scored.targets):
        raise GenoctxError(
            f"{place(scored.window)}: {done.sum():,} bases were scored, the genome has "
            f"{scored.targets.sum():,} to score",
            "please report this, with the command",
        )
    rest = length % letters
    first = 0 if data.codec.prefix else min(letters, length - rest)
    builder.exclude("first base of a window" if letters == 1 else "first word of a window", first)
    builder.exclude("no whole word at the end of a window", rest)
    builder.exclude(
        "N or another ambiguity code" + (" in the word" if letters > 1 else ""),
        length - int(done.sum()) - first - rest,
    )
