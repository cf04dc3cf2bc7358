"""Cutting a store into windows: every base ends up in a window or in ``Dropped``, with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import genoctx
from genoctx.errors import InputError, UsageError
from genoctx.genome.alphabet import N_CODE, count_codes, gc_fraction
from genoctx.genome.manifest import Contig
from genoctx.genome.names import match_names, natural_key
from genoctx.genome.splits import HOLDOUT, Interval, Split, make_split
from genoctx.genome.store import GenomeStore
from genoctx.genome.window_table import (
    Window,
    WindowTable,
    check_store,
    format_table,
    read_table,
    write_table,
)
from genoctx.sizes import format_size, parse_size

__all__ = [
    "Dropped",
    "Window",
    "WindowTable",
    "check_store",
    "cut",
    "format_table",
    "parse_size",
    "read_table",
    "write_table",
]

SHORT = "shorter than the context"
TAIL = "tail"
TOO_MANY_N = "more than max-n N"
GUARD = "guard gap"
SKIPPED = "between windows"


@dataclass(frozen=True)
class Dropped:
    """Bases ``start..end-1`` that no window covers."""

    contig: str
    start: int
    end: int
    reason: str

    @property
    def bases(self) -> int:
        return self.end - self.start


def cut(
    store: GenomeStore,
    *,
    context: int,
    stride: int | None = None,
    holdout: str,
    guard: int = 0,
    max_n: float = 0.5,
    seed: int = 0,
    contigs: Iterable[str] | None = None,
) -> tuple[WindowTable, list[Dropped]]:
    """Windows of exactly ``context`` bases, every ``stride`` bases (default: side by side).

    ``holdout`` is read by ``splits.make_split``; windows never cross into another split or a guard.
    Held-out windows never overlap, whatever the stride: each held-out base is scored at most once.
    A window with more than ``max_n`` N is dropped. ``contigs`` restricts the work to names or globs.
    The windows and the dropped intervals together cover each base of these contigs; both are sorted by
    contig name (chr2 before chr10) and start, so the order of contigs in the store changes nothing.
    Raises UsageError or InputError.
    """
    stride = context if stride is None else stride
    _check(context, stride, max_n)
    chosen = sorted(store.contigs, key=lambda contig: natural_key(contig.name))
    if contigs is not None:
        kept = set(match_names([contig.name for contig in chosen], contigs, "--contigs"))
        chosen = [contig for contig in chosen if contig.name in kept]
    split = make_split(chosen, holdout=holdout, guard=guard, block=context, seed=seed, shortest=context)
    windows: list[Window] = []
    dropped: list[Dropped] = []
    lost_to_n = 0
    for contig in chosen:
        if contig.length < context:  # a draft assembly has them by the hundred thousand
            dropped.append(Dropped(contig.name, 0, contig.length, SHORT))
            continue
        kept_here, lost, rejected = _cut_contig(store, contig.name, split, context, stride, max_n * context)
        windows += kept_here
        dropped += lost
        lost_to_n += rejected
    if not windows:
        raise _no_window(chosen, split, dropped, context)
    header: dict[str, str | int | float] = {
        "store": str(store.path),
        "store_digest": store.digest,
        "context": context,
        "stride": stride,
        "guard": guard,
        "holdout": holdout,
        "max_n": max_n,
        "seed": seed,
        "lost_to_n": lost_to_n,
        "genoctx": genoctx.__version__,
    }
    return WindowTable(tuple(windows), header), dropped


def _check(context: int, stride: int, max_n: float) -> None:
    if context < 2:
        raise UsageError(f"a context of {context} has nothing to predict", "for instance --context 1M")
    if stride < 1:
        raise UsageError(f"a stride of {stride} does not move", "for instance --stride 512k")
    if not 0 <= max_n <= 1:
        raise UsageError(f"max-n {max_n} is not a fraction", "give a number from 0 to 1, for instance 0.5")


def _cut_contig(
    store: GenomeStore, name: str, split: Split, context: int, stride: int, most_n: float
) -> tuple[list[Window], list[Dropped], int]:
    """Of one contig: windows with at most ``most_n`` N, what no window covers, windows with more N."""
    windows: list[Window] = []
    lost = [Dropped(name, *span, GUARD) for span in split.guards[name]]
    rejected = 0
    for interval in split.intervals[name]:
        step = max(stride, context) if interval.split == HOLDOUT else stride
        tried: list[tuple[int, int, bool]] = []
        for window, n in _windows(store, name, interval, context, step):
            tried.append((window.start, window.end, n <= most_n))
            if n <= most_n:
                windows.append(window)
            else:
                rejected += 1
        lost += [Dropped(name, *part) for part in _uncovered(interval, tried)]
    return windows, _joined(sorted(lost, key=lambda part: part.start)), rejected


def _no_window(contigs: Sequence[Contig], split: Split, dropped: list[Dropped], context: int) -> InputError:
    stretches = ((i.end - i.start, name, i) for name, each in split.intervals.items() for i in each)
    length, name, interval = max(stretches, key=lambda stretch: stretch[0], default=(0, "", None))
    if length >= context:
        lost = sum(part.bases for part in dropped if part.reason == TOO_MANY_N)
        return InputError(f"every window has too many N: {lost:,} bases lost", "raise --max-n")
    what, more = f"stretch of one split, {name}", ", or a smaller --guard, or hold out whole contigs"
    if interval is None:
        longest = max(contigs, key=lambda contig: contig.length)
        length, what, more = longest.length, f"contig, {longest.name}", ""
    else:
        what += f":{interval.start + 1}-{interval.end}"
    return InputError(
        f"no window of {context:,} bases fits: the longest {what}, has {length:,}, "
        f"{context - length:,} too few",
        f"take a --context of at most {length}bp, such as {format_size(1 << length.bit_length() - 1)}{more}",
    )


def _windows(
    store: GenomeStore, contig: str, interval: Interval, context: int, stride: int
) -> Iterator[tuple[Window, int]]:
    """Every window that fits into ``interval``, with its number of N."""
    for start in range(interval.start, interval.end - context + 1, stride):
        end = start + context
        counts = count_codes(store.codes(contig, start, end))
        n = int(counts[N_CODE])
        # the name is the place as people read it, 1-based and inclusive
        name = f"{contig}:{start + 1}-{end}"
        gc = round(1000 * gc_fraction(counts)) / 1000
        yield Window(contig, start, end, name, "+", interval.split, gc, round(n / context, 6)), n


def _uncovered(interval: Interval, spans: Sequence[tuple[int, int, bool]]) -> Iterator[tuple[int, int, str]]:
    """The parts of ``interval`` in no kept window, each with its reason.

    ``spans`` are the windows tried, in order: start, end, whether it was kept.
    """
    if not spans:
        yield interval.start, interval.end, SHORT
        return
    done = rejected = interval.start  # all before ``done`` is accounted for; rejected windows reach so far
    for start, end, kept in [*spans, (spans[-1][1], interval.end, True)]:
        middle = min(max(done, rejected), start)
        if done < middle:
            yield done, middle, TOO_MANY_N
        if max(done, middle) < start:
            yield max(done, middle), start, SKIPPED
        done = max(done, end if kept else start)
        rejected = rejected if kept else end
    if spans[-1][1] < interval.end:
        yield spans[-1][1], interval.end, TAIL


def _joined(parts: Iterable[Dropped]) -> list[Dropped]:
    """Sorted ``parts`` of one contig, neighbours with one reason as one."""
    joined: list[Dropped] = []
    for part in parts:
        if joined and joined[-1].end == part.start and joined[-1].reason == part.reason:
            joined[-1] = replace(joined[-1], end=part.end)
        else:
            joined.append(part)
    return joined
