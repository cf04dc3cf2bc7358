"""The held-out number: which bases it counts, and that how they are computed does not move it."""

from __future__ import annotations

import json
import math
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import Data, Listener, model_digest

from genoctx.engine.batch import stack_rows
from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.genome.windows import Window
from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.run.data import Data as OpenData
from genoctx.run.data import open_data, read_batch, windows_of
from genoctx.run.evaluate import evaluate
from genoctx.run.score import by_index, score_windows

COMPLEMENT = str.maketrans("ACGT", "TGCA")
NO_PREFIX = "first base of a window"
GAP = "N or another ambiguity code"


class Recorded(LedgerBuilder):
    """Also keeps what was added, base by base."""

    rows: dict[str, dict[int, tuple[float, float]]]

    def add(
        self, window_index: int, contig: str, positions: Any, nats_full: Any, nats_acgt: Any, **more: Any
    ) -> None:
        super().add(window_index, contig, positions, nats_full, nats_acgt, **more)
        for p, full, acgt in zip(positions, nats_full, nats_acgt, strict=True):
            Recorded.rows.setdefault(contig, {})[int(p)] = (float(full), float(acgt))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, tuple[float, float]]]:
    """(full, acgt) nats of every scored base by contig and position."""
    Recorded.rows = {}
    monkeypatch.setattr("genoctx.run.score.LedgerBuilder", Recorded)
    return Recorded.rows


def scored(model: Hybrid, data: OpenData, windows: tuple[Window, ...], chunk: int = 700) -> Ledger:
    return score_windows(Engine(model, chunk), data, by_index(data, windows), {})


def mean_nats(ledger: Ledger) -> tuple[float, float]:
    sums = ledger.totals()
    return sums.nats_full_sum / sums.count, sums.nats_acgt_sum / sums.count


def assert_near(a: Ledger, b: Ledger) -> None:
    """To 1e-6 nat per base; the counts exactly."""
    assert np.array_equal(a.count, b.count) and a.excluded == b.excluded
    assert max(abs(x - y) for x, y in zip(mean_nats(a), mean_nats(b), strict=True)) <= 1e-6


# how it is computed


@pytest.mark.parametrize("chunk", [2048, 1024, 701, 131])
def test_the_number_does_not_depend_on_the_chunk(chunk: int, model: Hybrid, phage_data: OpenData) -> None:
    windows = windows_of(phage_data, "holdout", 2)
    assert_near(scored(model, phage_data, windows, chunk), scored(model, phage_data, windows, 700))


def test_in_float64_the_number_is_the_same_at_any_chunk(model: Hybrid, phage_data: OpenData) -> None:
    windows, exact = windows_of(phage_data, "holdout", 2), deepcopy(model).double()
    a, b = (scored(exact, phage_data, windows, tokens) for tokens in (131, 700))
    assert max(abs(x - y) for x, y in zip(mean_nats(a), mean_nats(b), strict=True)) <= 1e-10


def test_the_number_does_not_depend_on_the_order(model: Hybrid, phage_data: OpenData) -> None:
    windows = windows_of(phage_data, "holdout")
    shuffled = list(windows)
    random.Random(1).shuffle(shuffled)
    assert shuffled != list(windows)
    a, b = scored(model, phage_data, windows), scored(model, phage_data, tuple(shuffled))
    assert np.array_equal(a.windows, b.windows) and np.array_equal(a.nats_full_sum, b.nats_full_sum)
    assert a.totals() == b.totals()


def test_the_number_does_not_depend_on_the_batch(model: Hybrid, phage_data: OpenData) -> None:
    windows = windows_of(phage_data, "holdout", 3)
    ledger = scored(model, phage_data, windows)
    alone = [
        (b.tokens_BT[0], b.targets_BT[0], b.names[0]) for b in (read_batch(phage_data, [w]) for w in windows)
    ]
    parts = list(Engine(model, 700).score(stack_rows(alone), torch.arange(4)))
    for name, sums in (("full", ledger.nats_full_sum), ("subset", ledger.nats_acgt_sum)):
        together = sum(getattr(part.nats, name).double().sum((1, 2)).numpy() for part in parts)
        by_window = np.bincount(np.searchsorted(ledger.windows[:, 0], ledger.window), sums)
        assert np.abs(together - by_window).max() / 2047 <= 1e-6


def test_the_number_is_the_loss_that_training_reports(model: Hybrid, phage_data: OpenData) -> None:
    windows = windows_of(phage_data, "holdout", 2)
    batches = [read_batch(phage_data, [w]) for w in windows]
    optimizer = Optimizer(model, AdamWSettings(weight_decay=0.0))
    losses = Engine(model, 700).train_step(batches, optimizer, 0.0).losses
    sums = scored(model, phage_data, windows).totals()
    assert losses.targets == sums.count
    assert abs(losses.nats - sums.nats_full_sum) / sums.count <= 1e-6


# which bases it counts


def bases_to_score(text: str, windows: tuple[Window, ...]) -> set[int]:
    """By the letters of the FASTA file alone."""
    found = set()
    for window in windows:
        first = window.start if window.strand == "+" else window.end - 1
        inside = set(range(window.start, window.end)) - {first}
        found |= {p for p in inside if text[p].upper() in "ACGT"}
    return found


@pytest.mark.parametrize("chunk", [512, 100, 3])
def test_n_and_iupac_are_never_scored_and_everything_else_once(
    chunk: int, model: Hybrid, gapped_data: OpenData, gapped_text: str, recorded: dict[str, Any]
) -> None:
    windows = windows_of(gapped_data, "holdout", 8 if chunk > 3 else 1)
    ledger = scored(model, gapped_data, windows, chunk)
    wanted = bases_to_score(gapped_text, windows)
    assert set(recorded["gaps"]) == wanted and list(recorded) == ["gaps"]
    sums = ledger.totals()
    assert sums.count == len(wanted)
    assert sums.excluded[NO_PREFIX] == len(windows)
    assert sums.count + sum(sums.excluded.values()) == sum(w.end - w.start for w in windows)


def test_a_reversed_window_is_scored_from_its_other_end(
    model: Hybrid, gapped: Data, gapped_text: str, recorded: dict[str, Any], tmp_path: Path
) -> None:
    """Every base keeps its place on the contig, and the nats are those of one plain forward pass."""
    table = tmp_path / "reversed.bed"
    table.write_text(gapped.windows.read_text().replace("\t+\tholdout", "\t-\tholdout"))
    data = open_data(gapped.store, table, ModelConfig(vocab_size=16))
    windows = windows_of(data, "holdout", 4)
    assert {w.strand for w in windows} == {"-"}
    scored(model, data, windows)
    assert set(recorded["gaps"]) == bases_to_score(gapped_text, windows)
    assert_plain_forward(model, windows, gapped_text, recorded["gaps"])


def test_the_nats_are_those_of_one_plain_forward_pass(
    model: Hybrid, gapped_data: OpenData, gapped_text: str, recorded: dict[str, Any]
) -> None:
    windows = windows_of(gapped_data, "holdout", 4)
    scored(model, gapped_data, windows)
    assert_plain_forward(model, windows, gapped_text, recorded["gaps"])


def assert_plain_forward(
    model: Hybrid, windows: tuple[Window, ...], text: str, nats: dict[int, tuple[float, float]]
) -> None:
    """Letters to ids, one pass, log-softmax: none of our readers, targets, chunks or losses."""
    for window in windows:
        places = list(range(window.start, window.end))
        letters = text[window.start : window.end].upper()
        if window.strand == "-":
            places, letters = places[::-1], letters[::-1].translate(COMPLEMENT)
        ids = torch.tensor([["ACGTN".find(base) if base in "ACGT" else 4 for base in letters]])
        with torch.no_grad():
            hidden = model(ids, model.initial_carry(1, ids.shape[1])).hidden[0]
            logits = (hidden @ model.lm_head.weight.T).double()
        full, acgt = logits.log_softmax(-1), logits[:, :4].log_softmax(-1)
        for t, place in enumerate(places[1:]):
            if place in nats:
                target = int(ids[0, t + 1])
                assert abs(nats[place][0] + float(full[t, target])) < 1e-4
                assert abs(nats[place][1] + float(acgt[t, target])) < 1e-4


def test_a_window_of_nothing_but_n_adds_nothing(model: Hybrid, gapped_data: OpenData) -> None:
    windows = windows_of(gapped_data, "holdout")
    empty = [w for w in windows if w.n_fraction == 1.0]
    assert [(w.start, w.end) for w in empty] == [(2560, 3072)]
    with_it, alone = scored(model, gapped_data, windows), scored(model, gapped_data, tuple(empty))
    without = scored(model, gapped_data, tuple(w for w in windows if w not in empty))
    assert alone.totals().count == 0 and alone.totals().excluded == {NO_PREFIX: 1, GAP: 511}
    assert with_it.totals().nats_full_sum == without.totals().nats_full_sum
    assert with_it.totals().windows == without.totals().windows + 1


# what it leaves


def test_an_evaluation_says_what_it_scored(model: Hybrid, phage_data: OpenData, tmp_path: Path) -> None:
    windows, listener = windows_of(phage_data, "holdout", 2), Listener()
    made = evaluate(model, phage_data, windows, chunk=700, step=7, out=tmp_path / "e", monitor=listener)
    found = Ledger.load(tmp_path / "e/ledger.npz")
    sums = found.totals()
    assert sums == made.ledger.totals() and sums.count == 2 * 2047
    wanted = {
        "checkpoint": model_digest(model),
        "step": 7,
        "store": str(phage_data.store.path.resolve()),
        "store_digest": phage_data.store.digest,
        "windows": str(phage_data.table_path.resolve()),
        "split": "holdout",
        "context": 2048,
        "chunk": 700,
    }
    assert found.header.items() >= wanted.items()
    summary = json.loads((tmp_path / "e/summary.json").read_text())
    assert summary["bits_acgt"] == sums.nats_acgt_sum / (math.log(2) * sums.count)
    assert f"{sums.bits_acgt:.4f} bits/base over 4,094 bases, 2 windows" in listener.text
    assert listener.chunks == 2 * 3


def test_the_digest_is_of_the_weights(model: Hybrid) -> None:
    before = model_digest(model)
    assert model_digest(model) == before
    with torch.no_grad():
        model.norm.weight[0] += 1e-6
        changed = model_digest(model)
        model.norm.weight[0] -= 1e-6
    assert changed != before
