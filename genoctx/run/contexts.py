"""The same bases at several contexts (``report/context_ledger.py`` says which, and why those)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch

from genoctx.engine.batch import Batch
from genoctx.engine.engine import Engine
from genoctx.engine.stream import OnChunk, quiet
from genoctx.errors import UsageError
from genoctx.genome.windows import Window
from genoctx.report.adaptive import AdaptiveModel
from genoctx.report.context_ledger import ContextBuilder, ContextLedger, piece_starts
from genoctx.run.data import Data, place, read_batch, tokens_of
from genoctx.run.score import ScoredWindow, bases_of, codes_of, from_base, positions_of, targets_of
from genoctx.run.strata import seen_before
from genoctx.sizes import format_size

_DIVIDE = "every context must divide the window; powers of two do: --contexts 4k,16k,64k"


def check_contexts(contexts: Sequence[int], windows: Sequence[Window], letters: int) -> tuple[int, ...]:
    """Ascending, each once, and at the end the whole window, in bases. Raises UsageError.

    ``letters`` are the bases of a token.
    """
    whole = windows[0].end - windows[0].start
    for window in windows:
        if window.end - window.start != whole:
            raise UsageError(
                f"--contexts needs windows of one length, and {place(window)} has "
                f"{window.end - window.start:,} bases where {place(windows[0])} has {whole:,}",
                "cut a table with `genoctx windows --context`",
            )
    for context in contexts:
        if context > whole:
            raise UsageError(
                f"a context of {format_size(context)} is longer than the windows, which have {whole:,} bases",
                f"leave it out, or cut a table with `genoctx windows --context {format_size(context)}`",
            )
    chosen = tuple(sorted({*contexts, whole}))
    for context in chosen:
        if context < 1 or whole % context:
            raise UsageError(f"windows of {whole:,} bases cannot be cut into {context:,}", _DIVIDE)
        if context % (2 * letters):
            what = "two equal halves" if letters == 1 else f"two halves of whole tokens of {letters} bases"
            raise UsageError(f"a context of {context:,} bases has not {what}", _DIVIDE)
    return chosen


class ContextScorer:
    """Puts every window's second half at its own length into a ledger, then reads all again at the shorter
    contexts; the adaptive baseline does too."""

    def __init__(
        self,
        engine: Engine,
        data: Data,
        header: Mapping[str, object],
        contexts: Sequence[int],
        on_chunk: OnChunk = quiet,
        on_window: Callable[[], None] = lambda: None,
    ) -> None:
        """``contexts`` as ``check_contexts`` gives them; ``on_window`` is called for every window counted."""
        self._on_window = on_window
        self._engine, self._data, self._contexts, self._on_chunk = engine, data, contexts, on_chunk
        self._builder = ContextBuilder(header, [c.name for c in data.store.contigs], contexts)

    def add(self, scored: ScoredWindow) -> None:
        """A window that was scored whole."""
        middle = len(scored.codes) // 2
        self._add(len(self._contexts) - 1, scored.index, scored.window, scored.nats_acgt[middle:])

    def read_shorter(self, windows: Mapping[int, Window]) -> None:
        """The windows, by their index in the table, once more at every shorter context. Collective."""
        for number, context in enumerate(self._contexts[:-1]):
            halves = second_halves(self._engine, self._data, windows, context, self._on_chunk)
            with closing(halves):
                for index, nats in halves:
                    self._add(number, index, windows[index], nats)

    def _add(self, number: int, index: int, window: Window, nats: np.ndarray) -> None:
        self._on_window()
        codes, middle = codes_of(self._data, window), len(nats)
        late = np.flatnonzero(targets_of(self._data, codes)[middle:])
        adaptive = AdaptiveModel().nats_of_second_half(codes, self._contexts[number])
        self._builder.add(
            number,
            index,
            (window.contig, window.start, window.end),
            positions_of(window, middle + late),
            seen_before(codes)[middle:][late],
            nats[late],
            adaptive[late],
        )

    def build(self) -> ContextLedger:
        """The ledger of all windows so far."""
        return self._builder.build()


def second_halves(
    engine: Engine, data: Data, windows: Mapping[int, Window], context: int, on_chunk: OnChunk = quiet
) -> Generator[tuple[int, np.ndarray]]:
    """Nats over A, C, G and T of the second half of each window, NaN where none is scored: (index, float64
    [bases / 2]). Pieces are read side by side, as many as make up one chunk of the engine; where many ranks
    score, the first one gets everything. Close it, as ``Engine.score_all``."""
    rows = max(1, engine.chunk // context)
    jobs = [
        (index, *job) for index, window in windows.items() for job in _side_by_side(window, context, rows)
    ]
    lengths = [tokens_of(data, pieces[0]) for _, _, pieces in jobs]

    def read(job: int) -> Batch:
        return from_base(read_batch(data, jobs[job][2]), data.codec, context // 2)

    words, letters = torch.tensor(data.codec.words), data.codec.letters
    with closing(engine.score_all(lengths, read, words, letters, on_chunk)) as parts:
        for index, scored in groupby(parts, key=lambda part: jobs[part[0]][0]):
            middle = (windows[index].end - windows[index].start) // 2
            nats = np.full(middle, np.nan)
            for job, found in groupby(scored, key=itemgetter(0)):
                batch, begins = read(job), jobs[job][1]
                for bases in (bases for _, part in found for bases in bases_of(part, batch, data)):
                    nats[begins[bases.row] + bases.offset - middle] = bases.nats_acgt
            yield index, nats


def _side_by_side(window: Window, context: int, rows: int) -> Iterator[tuple[list[int], list[Window]]]:
    """Pieces of ``context`` bases whose second halves make up that of ``window``, ``rows`` at a time, and
    where they begin in reading direction."""
    begins = list(piece_starts(window.end - window.start, context))
    for i in range(0, len(begins), rows):
        group = begins[i : i + rows]
        yield group, [_piece(window, begin, begin + context) for begin in group]


def _piece(window: Window, begin: int, end: int) -> Window:
    """Bases begin..end-1 of ``window`` in reading direction."""
    if window.strand == "+":
        return replace(window, start=window.start + begin, end=window.start + end)
    return replace(window, start=window.end - end, end=window.end - begin)
