"""Score windows into the files of an evaluation. Every number of a report comes from here."""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from genoctx.engine.engine import Engine
from genoctx.engine.stream import OnChunk, quiet
from genoctx.errors import UsageError
from genoctx.files import write_json
from genoctx.genome.windows import Window
from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid
from genoctx.report.context_ledger import FILE as CONTEXTS_FILE
from genoctx.report.coverage import check_accounts, check_bases, check_coverage
from genoctx.run.contexts import ContextScorer, check_contexts
from genoctx.run.data import Data, place, tokens_of
from genoctx.run.evaluation import Evaluation
from genoctx.run.monitor import Monitor
from genoctx.run.score import ScoredWindow, by_index, other_strand, score_windows
from genoctx.run.tracks import TrackWriter, in_track_order
from genoctx.sizes import format_size

LEDGER_FILE, REVERSE_FILE, SUMMARY_FILE = "ledger.npz", "ledger-rc.npz", "summary.json"


@dataclass(frozen=True)
class Extras:
    """What an evaluation may write beside its ledger."""

    rc: bool = False
    """Also every window read from its other end."""
    contexts: tuple[int, ...] = ()
    """In bases: the second half of every window at each of these too, and at the whole window."""
    track: tuple[Path, int] | None = None
    """A bedGraph file, and the bases that a value of it is the mean of."""


NO_EXTRAS = Extras()


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> tuple[str, int]:
    """First 16 hex digits of the sha256 over ``Engine.weights``, and how many parameters there are."""
    digest, total = hashlib.sha256(), 0
    for name, tensor in weights:
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        total += tensor.numel()
    return digest.hexdigest()[:16], total


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
    on_window: Callable[[], None] = lambda: None,
    extras: Extras = NO_EXTRAS,
    engine: Engine | None = None,
) -> Evaluation:
    """Score ``windows``, the first ones of a split or all, and write what was found into ``out``.

    ``ledger.npz`` and ``summary.json`` always, ``ledger-rc.npz`` and ``contexts.npz`` where asked for. Raises
    UsageError, before anything is scored, for contexts or a track that the windows do not allow.
    ``on_window``: called where windows are counted, which may take as long as chunks do.
    ``engine``: of many ranks, which all call this at the same time. The first one writes what was found and
    returns it, the others return ledgers without windows.
    """
    contexts = check_extras(extras, data, windows, chunk, many=engine is not None)
    engine = engine or Engine(model, chunk)
    chosen = by_index(data, in_track_order(windows) if extras.track else windows)
    header = _header(engine, data, windows, step)
    passes = 1 + extras.rc + len(contexts[:-1])
    total = passes * sum(w.end - w.start for w in windows)
    with ExitStack() as stack:
        bar = stack.enter_context(monitor.progress(f"eval at step {step}", total, "bases"))

        def watched(tokens: int, sweep: str) -> None:
            bar.advance(tokens)
            on_chunk(tokens, sweep)

        scorer = ContextScorer(engine, data, header, contexts, watched, on_window) if contexts else None
        track = None
        if extras.track and engine.first:
            track = stack.enter_context(TrackWriter(*extras.track, f"genoctx, step {step}"))

        def finished(scored: ScoredWindow) -> None:
            on_window()
            if scorer:
                scorer.add(scored)
            if track:
                nats = scored.nats_acgt if scored.window.strand == "+" else scored.nats_acgt[::-1]
                track.add(scored.window.contig, scored.window.start, nats)

        ledger = score_windows(engine, data, chosen, header, watched, finished)
        if scorer:
            scorer.read_shorter(chosen)
        reverse = None
        if extras.rc:
            turned = {index: other_strand(window) for index, window in chosen.items()}
            reverse = score_windows(
                engine, data, turned, {**header, "strand": "-"}, watched, lambda _: on_window()
            )
    if not engine.first:
        return Evaluation(ledger, reverse, None)
    made = Evaluation(ledger, reverse, scorer.build() if scorer else None)
    for part in (ledger, reverse):
        if part:
            check_coverage(part, data.table)
            check_accounts(part)
    if made.contexts:
        check_coverage(made.contexts, data.table)
        check_bases(made.contexts, data.table, data.store.codes)
    _write(made, out, step)
    _tell(made, windows, step, monitor)
    return made


def check_extras(
    extras: Extras, data: Data, windows: Sequence[Window], chunk: int, many: bool = False
) -> tuple[int, ...]:
    """All contexts, ascending, the window's own at the end; none where none was asked for.

    Raises UsageError for contexts or a track that the windows do not allow; ``many`` ranks allow less.
    """
    if extras.track:
        in_track_order(windows)
        if many and len({-(-tokens_of(data, window) // chunk) for window in windows}) > 1:
            raise UsageError(
                "--tracks on many ranks needs windows of as many chunks each: the others are scored out of order",
                "write the track in one process, or cut a table with one --context",
            )
    return check_contexts(extras.contexts, windows, data.codec.letters) if extras.contexts else ()


def _header(engine: Engine, data: Data, windows: Sequence[Window], step: int) -> dict[str, object]:
    split, inputs = windows[0].split, data.inputs
    digest, parameters = weights_digest(engine.weights())
    return {
        "model": _described(engine.model.config, parameters),
        "checkpoint": digest,
        "step": step,
        "store": str(data.store.path.resolve()),
        "store_digest": inputs.store,
        "windows": str(data.table_path.resolve()),
        "windows_digest": inputs.windows,
        "split": split,
        "limit": 0 if len(windows) == len(data.table.split(split)) else len(windows),
        "strand": "+",
        "context": data.table.header["context"],
        "token_bases": data.codec.letters,
        "prefixed": bool(data.codec.prefix),
        "chunk": engine.chunk,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
    }


def _write(made: Evaluation, out: Path, step: int) -> None:
    """The ledger last: where it is, the evaluation is complete, and what lies beside it belongs to it."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (LEDGER_FILE, REVERSE_FILE, CONTEXTS_FILE):
        (out / name).unlink(missing_ok=True)
    if made.reverse:
        made.reverse.save(out / REVERSE_FILE)
    if made.contexts:
        made.contexts.save(out / CONTEXTS_FILE)
    write_json(out / SUMMARY_FILE, {"schema": 1, "step": step, **made.summary()})
    made.ledger.save(out / LEDGER_FILE)


def _tell(made: Evaluation, windows: Sequence[Window], step: int, monitor: Monitor) -> None:
    found, first, last = made.summary(), place(windows[0]), place(windows[-1])
    monitor.info(
        f"held-out loss at step {step}: {found['bits_acgt']:.4f} bits/base over {found['scored_bases']:,} "
        f"bases, {found['windows']} windows ({first} .. {last})"
    )
    if made.reverse:
        monitor.info(
            f"reverse complement: {found['reverse']['bits_acgt']:.4f} bits/base; "
            f"mean of both strands {found['both']['bits_acgt']:.4f}"
        )
    for row in found.get("contexts", ()):
        seen, novel = (f"{row[key]:.4f}" if row[key] is not None else "-" for key in ("seen", "novel"))
        monitor.info(
            f"context {format_size(row['context'])}: {row['bits_acgt']:.4f} bits/base (seen {seen}, novel {novel})"
        )


def describe(model: Hybrid) -> str:
    """One line on the model's shape."""
    return _described(model.config, sum(p.numel() for p in model.parameters()))


def _described(c: ModelConfig, parameters: int) -> str:
    layers = f"{len(c.kda_layers)} KDA + {len(c.dsa_layers)} DSA layers"
    return f"glm5_next, {parameters:,} parameters, {layers}, width {c.hidden_size}"
