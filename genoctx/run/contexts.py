"""The same bases at several contexts (``report/context_ledger.py`` says which, and why those)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from genoctx.engine.engine import Engine
from genoctx.engine.stream import OnChunk, quiet
from genoctx.errors import UsageError
from genoctx.genome.windows import Window
from genoctx.report.adaptive import AdaptiveModel
from genoctx.report.context_ledger import ContextBuilder, ContextLedger, piece_starts
from genoctx.run.data import Data, place
from genoctx.run.score import ScoredWindow, positions_of, score_bases
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
    """Reads each window again at the shorter contexts, once it was scored whole; the adaptive baseline does too."""

    def __init__(
        self,
        engine: Engine,
        data: Data,
        header: Mapping[str, object],
        contexts: Sequence[int],
        on_chunk: OnChunk = quiet,
    ) -> None:
        """``contexts`` as ``check_contexts`` gives them."""
        self._engine, self._data, self._contexts, self._on_chunk = engine, data, contexts, on_chunk
        self._builder = ContextBuilder(header, [c.name for c in data.store.contigs], contexts)

    def add(self, scored: ScoredWindow) -> None:
        """The second half of a window at every context; the longest was computed already."""
        window, middle = scored.window, len(scored.codes) // 2
        place = (window.contig, window.start, window.end)
        late = np.flatnonzero(scored.targets[middle:])
        positions = positions_of(window, middle + late)
        seen = seen_before(scored.codes)[middle:][late]
        baseline = AdaptiveModel()
        for number, context in enumerate(self._contexts):
            if number + 1 < len(self._contexts):
                nats = second_half(self._engine, self._data, window, context, self._on_chunk)
            else:
                nats = scored.nats_acgt[middle:]
            adaptive = baseline.nats_of_second_half(scored.codes, context)
            self._builder.add(number, scored.index, place, positions, seen, nats[late], adaptive[late])

    def build(self) -> ContextLedger:
        """The ledger of all windows so far."""
        return self._builder.build()


def second_half(
    engine: Engine, data: Data, window: Window, context: int, on_chunk: OnChunk = quiet
) -> np.ndarray:
    """Nats over A, C, G and T of the second half of ``window`` in reading direction, NaN where none is scored:
    float64 [bases / 2]. Pieces are read side by side, as many as make up one chunk of the engine."""
    middle = (window.end - window.start) // 2
    nats = np.full(middle, np.nan)
    for starts, pieces in _side_by_side(window, context, max(1, engine.chunk // context)):
        for bases in score_bases(engine, data, pieces, context // 2, on_chunk):
            nats[starts[bases.row] + bases.offset - middle] = bases.nats_acgt
    return nats


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
