"""The same bases at several contexts: which bases, which pieces, and that batching them moves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_run import Data, Listener

from genoctx.engine.engine import Engine
from genoctx.errors import GenoctxError, UsageError
from genoctx.genome.codec import Codec
from genoctx.genome.windows import Window
from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid
from genoctx.report.adaptive import AdaptiveModel
from genoctx.report.context_ledger import ContextLedger
from genoctx.report.ledger import Ledger
from genoctx.run.contexts import ContextScorer, check_contexts, second_halves
from genoctx.run.data import Data as OpenData
from genoctx.run.data import open_data, windows_of
from genoctx.run.evaluate import Extras, evaluate
from genoctx.run.score import by_index, score_windows
from genoctx.run.strata import seen_before

LENGTH = 512
COMPLEMENT = str.maketrans("ACGT", "TGCA")


@pytest.fixture(scope="module")
def reversed_data(gapped: Data, tmp_path_factory: pytest.TempPathFactory) -> OpenData:
    table = tmp_path_factory.mktemp("reversed") / "reversed.bed"
    table.write_text(gapped.windows.read_text().replace("\t+\tholdout", "\t-\tholdout"))
    return open_data(gapped.store, table, ModelConfig(vocab_size=16))


def piece_alone(model: Hybrid, letters: str) -> np.ndarray:
    """Nats over A, C, G, T of the second half of ``letters``: one plain forward pass, NaN for other letters."""
    ids = torch.tensor([["ACGTN".find(base) if base in "ACGT" else 4 for base in letters]])
    with torch.no_grad():
        hidden = model(ids, model.initial_carry(1, ids.shape[1])).hidden[0]
        acgt = (hidden @ model.lm_head.weight.T).double()[:, :4].log_softmax(-1)
    targets = ids[0, 1:]
    nats = -acgt[:-1].gather(1, targets.clamp_max(3).unsqueeze(1)).squeeze(1)
    nats[targets > 3] = torch.nan
    return nats.numpy()[len(letters) // 2 - 1 :]


@pytest.mark.parametrize("chunk", [512, 300, 100])
@pytest.mark.parametrize("context", [64, 256])
@pytest.mark.parametrize("strand", ["+", "-"])
def test_pieces_side_by_side_are_pieces_alone(
    strand: str,
    context: int,
    chunk: int,
    model: Hybrid,
    gapped_data: OpenData,
    reversed_data: OpenData,
    gapped_text: str,
) -> None:
    """By the letters of the FASTA file: pieces of c, one every c / 2, the second half of each."""
    data = gapped_data if strand == "+" else reversed_data
    window = windows_of(data, "holdout")[1]
    text = gapped_text[window.start : window.end].upper()
    text = text if strand == "+" else text[::-1].translate(COMPLEMENT)
    wanted = np.concatenate(
        [
            piece_alone(model, text[begin : begin + context])
            for begin in range(0, LENGTH - context + 1, context // 2)
            if begin + context // 2 >= LENGTH // 2
        ]
    )
    found = second_half(model, chunk, data, window, context)
    assert len(wanted) == len(found) == LENGTH // 2
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    assert np.nanmax(np.abs(found - wanted)) < 1e-4


def second_half(model: Hybrid, chunk: int, data: OpenData, window: Window, context: int) -> np.ndarray:
    [(index, nats)] = second_halves(Engine(model, chunk), data, {7: window}, context)
    assert index == 7
    return nats


def contexts_of(
    model: Hybrid, data: OpenData, chunk: int = 512, contexts: tuple[int, ...] = (64, 128, 512)
) -> tuple[Ledger, ContextLedger]:
    engine, windows = Engine(model, chunk), by_index(data, windows_of(data, "holdout", 6))
    scorer = ContextScorer(engine, data, {}, contexts)
    ledger = score_windows(engine, data, windows, {}, on_window=scorer.add)
    scorer.read_shorter(windows)
    return ledger, scorer.build()


def test_every_context_has_the_bases_of_the_second_halves(
    model: Hybrid, gapped_data: OpenData, gapped_text: str
) -> None:
    _, found = contexts_of(model, gapped_data)
    late = sum(
        base.upper() in "ACGT"
        for i, base in enumerate(gapped_text[: 6 * LENGTH])
        if i % LENGTH >= LENGTH // 2
    )
    assert found.contexts == (64, 128, 512) and found.problem() == ""
    for number in range(3):
        assert found.count[found.context == number].sum() == late


@pytest.mark.parametrize("strand", ["+", "-"])
def test_the_adaptive_baseline_reads_the_same_pieces(
    strand: str, model: Hybrid, gapped_data: OpenData, reversed_data: OpenData, gapped_text: str
) -> None:
    """By the letters of the FASTA file."""
    data = gapped_data if strand == "+" else reversed_data
    _, found = contexts_of(model, data)
    wanted = np.zeros((3, 6))
    for i in range(6):
        text = gapped_text[i * LENGTH : (i + 1) * LENGTH].upper()
        text = text if strand == "+" else text[::-1].translate(COMPLEMENT)
        codes = np.array(["ACGT".find(base) % 5 for base in text], dtype=np.uint8)
        for number, context in enumerate((64, 128, 512)):
            for begin in range(LENGTH // 2 - context // 2, LENGTH - context + 1, context // 2):
                nats = AdaptiveModel().nats(codes[begin : begin + context])
                wanted[number, i] += np.nansum(nats[context // 2 :])
    assert found.adaptive_nats_sum is not None
    made = np.zeros((3, 6))
    np.add.at(
        made, (found.context, np.searchsorted(found.windows[:, 0], found.window)), found.adaptive_nats_sum
    )
    np.testing.assert_allclose(made, wanted, rtol=1e-12)
    assert (wanted[:, 5] == 0).all() and (wanted[:, 0] > 0).all(), "the last of them is nothing but N"


def test_the_longest_context_is_the_pass_itself(
    model: Hybrid, gapped_data: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no pass is made for it."""
    monkeypatch.setattr("genoctx.run.contexts.second_halves", None)
    engine, windows = Engine(model, 512), by_index(gapped_data, windows_of(gapped_data, "holdout", 3))
    scorer = ContextScorer(engine, gapped_data, {}, (512,))
    nats = []
    ledger = score_windows(
        engine,
        gapped_data,
        windows,
        {},
        on_window=lambda scored: (scorer.add(scored), nats.append(scored.nats_acgt)),  # type: ignore[func-returns-value]
    )
    scorer.read_shorter(windows)
    late = np.concatenate([window[LENGTH // 2 :] for window in nats])
    found = scorer.build()
    assert found.nats_acgt_sum.sum() == pytest.approx(np.nansum(late), rel=1e-12)
    assert found.count.sum() == np.count_nonzero(~np.isnan(late))
    assert np.nansum(np.concatenate(nats)) == pytest.approx(ledger.totals().nats_acgt_sum, rel=1e-12)


@pytest.mark.parametrize("chunk", [700, 129])
def test_contexts_do_not_depend_on_the_chunk(chunk: int, model: Hybrid, gapped_data: OpenData) -> None:
    (_, a), (_, b) = contexts_of(model, gapped_data), contexts_of(model, gapped_data, chunk)
    for name in ("context", "window", "block_start", "seen", "count"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for number in range(3):
        here = a.context == number
        difference = a.nats_acgt_sum[here].sum() - b.nats_acgt_sum[here].sum()
        assert abs(difference) / a.count[here].sum() <= 1e-6


@pytest.mark.parametrize("letters", [2, 4])
def test_contexts_of_words_are_made_of_whole_words(
    letters: int, gapped: Data, gapped_data: OpenData, tmp_path: Path
) -> None:
    from genoctx.run.trainer import build_model

    config = gapped.config(tmp_path, f"model.token_bases={letters}", "model.vocab_size=257")
    words = build_model(config)
    data = replace(gapped_data, codec=Codec.for_vocab(257, letters))
    ledger, found = contexts_of(words, data)
    assert found.problem() == "" and found.count.sum() % (3 * letters) == 0
    window = windows_of(data, "holdout")[1]
    one, rows = (second_half(words, chunk, data, window, 64) for chunk in (16, 512))
    np.testing.assert_allclose(one, rows, atol=1e-5)
    assert ledger.totals().count > found.count.sum() / 3 > 0


def test_every_piece_begins_with_the_prefix(model: Hybrid, gapped_data: OpenData, gapped_text: str) -> None:
    data = replace(gapped_data, codec=Codec((0, 1, 2, 3), 4, prefix=(9, 11)))
    window = windows_of(data, "holdout")[1]
    ids = [
        "ACGT".find(base) if base in "ACGT" else 4 for base in gapped_text[window.start : window.end].upper()
    ]
    found = second_half(model, 512, data, window, 256)
    last = torch.tensor([[9, 11, *ids[256:]]])
    with torch.no_grad():
        hidden = model(last, model.initial_carry(1, last.shape[1])).hidden[0]
        acgt = (hidden @ model.lm_head.weight.T).double()[:, :4].log_softmax(-1)
    for offset in range(128, 256):
        target = ids[256 + offset]
        nats = found[offset]  # position 0 of the piece is that of [gMASK]; base b is predicted at b + 1
        assert np.isnan(nats) if target > 3 else abs(nats + float(acgt[offset + 1, target])) < 1e-4


@pytest.mark.parametrize(
    ("contexts", "letters", "words"),
    [
        ((1024,), 1, "1k is longer than the windows"),
        ((96,), 1, "cannot be cut into 96"),
        ((0,), 1, "cannot be cut into 0"),
        ((1,), 1, "two equal halves"),
        ((64,), 3, "whole tokens of 3 bases"),
        ((4,), 4, "whole tokens of 4 bases"),
    ],
)
def test_contexts_that_windows_do_not_allow_are_refused(
    contexts: tuple[int, ...], letters: int, words: str, gapped_data: OpenData
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check_contexts(contexts, windows_of(gapped_data, "holdout"), letters)
    assert caught.value.hint


def test_contexts_are_sorted_and_end_with_the_window(gapped_data: OpenData) -> None:
    windows = windows_of(gapped_data, "holdout")
    assert check_contexts((256, 64, 256), windows, 1) == (64, 256, 512)
    shorter = replace(windows[1], end=windows[1].end - 1)
    with pytest.raises(UsageError, match="windows of one length"):
        check_contexts((64,), (windows[0], shorter), 1)


def test_an_evaluation_leaves_the_curve(model: Hybrid, gapped_data: OpenData, tmp_path: Path) -> None:
    windows, listener = windows_of(gapped_data, "holdout", 4), Listener()
    extras = Extras(contexts=(128, 64))
    made = evaluate(
        model, gapped_data, windows, chunk=256, step=3, out=tmp_path, monitor=listener, extras=extras
    )
    found = ContextLedger.load(tmp_path / "contexts.npz")
    assert found.contexts == (64, 128, 512) and found.header["checkpoint"] == made.ledger.header["checkpoint"]
    rows = made.summary()["contexts"]
    assert [row["context"] for row in rows] == [64, 128, 512]
    assert len({row["scored_bases"] for row in rows}) == 1
    assert f"context 64: {rows[0]['bits_acgt']:.4f} bits/base" in listener.text
    evaluate(model, gapped_data, windows, chunk=256, step=3, out=tmp_path, monitor=listener)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.npz", "summary.json"]


def test_a_loss_that_is_not_a_number_stops_everything(
    model: Hybrid, gapped_data: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(engine: Engine, data: OpenData, windows: dict[int, Window], *_: object) -> Any:
        yield next(iter(windows)), np.full(LENGTH // 2, np.nan)

    monkeypatch.setattr("genoctx.run.contexts.second_halves", nothing)
    with pytest.raises(GenoctxError, match=r"gaps:\d+ is not a number"):
        contexts_of(model, gapped_data)


# seen and novel


def seen_slowly(text: str, k: int) -> list[bool]:
    met: set[str] = set()
    found = []
    for end in range(1, len(text) + 1):
        kmer = text[max(0, end - k) : end]
        whole = len(kmer) == k and set(kmer) <= set("ACGT")
        found.append(whole and kmer in met)
        if whole:
            met |= {kmer, kmer[::-1].translate(COMPLEMENT)}
    return found


@given(st.text("ACGTN", max_size=60), st.text("ACGTRN", max_size=40), st.booleans(), st.integers(11, 24))
@settings(max_examples=150, deadline=None)
def test_seen_is_what_a_set_of_kmers_says(unit: str, tail: str, turned: bool, k: int) -> None:
    again = unit[::-1].translate(COMPLEMENT) if turned else unit
    text = unit + tail + again + unit[:30] + "A" * 30 + "T" * 30
    codes = np.array(["ACGTNR".find(base) for base in text], dtype=np.uint8)
    assert seen_before(codes, k).tolist() == seen_slowly(text, k)


def test_a_short_window_has_seen_nothing() -> None:
    assert seen_before(np.zeros(23, dtype=np.uint8)).tolist() == [False] * 23
    assert seen_before(np.zeros(25, dtype=np.uint8)).tolist() == [False] * 24 + [True]
