"""Runs whose tokens are words of several bases, and runs in which lower case counts less."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tiny_run import Data, Listener, make_data

from genoctx.genome.store import GenomeStore
from genoctx.report.baselines import MarkovCounts, baseline_ledger
from genoctx.report.ledger import Ledger
from genoctx.run.data import open_data, read_batch, windows_of
from genoctx.run.metrics import read_metrics
from genoctx.run.train import train

WORDS = ("model.token_bases=3", "model.vocab_size=65", "train.steps=3", "train.windows_per_step=2")


def run(data: Data, folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    out = folder / "run"
    train(data.config(folder, *overrides), source=data.toml(), out=out, monitor=Listener())
    return out


def ledger(out: Path, step: int) -> Ledger:
    return Ledger.load(out / "eval" / f"step-{step:06d}" / "ledger.npz")


def test_words_are_scored_base_by_base(gapped: Data, tmp_path: Path, gapped_text: str) -> None:
    """Every base of every word without an N is counted, at its own place, whatever the frame of the block."""
    data = gapped
    out = run(data, tmp_path / "a", *WORDS, "eval.limit=0")
    found = ledger(out, 3)
    expected = 0
    for start in range(0, len(gapped_text), 512):
        words = [gapped_text[start + i : start + i + 3].upper() for i in range(3, 510, 3)]
        expected += 3 * sum(set(word) <= set("ACGT") for word in words)
    assert found.totals().count == expected
    assert sum(found.excluded.values()) + expected == len(gapped_text)
    assert found.excluded["first word of a window"] == 3 * 8
    assert found.excluded["no whole word at the end of a window"] == 2 * 8
    store = GenomeStore.open(data.store)
    counts = MarkovCounts(2)
    counts.add(store.codes("whole", 0, 1024))
    baseline = baseline_ledger(found, store.codes, counts.model(2))  # refuses other bases than the ledger's
    assert baseline.totals().count == expected
    last = read_metrics(out / "metrics.jsonl")[-1]
    assert last["loss_bits"] < 2.2 and last["bases"] == 3 * 2 * 3 * (510 // 3 - 1)


def test_fresh_words_say_that_every_base_is_equally_likely(phage: Data, tmp_path: Path) -> None:
    """A model that gives all words the same weight has 2 bits per base; the N word costs a little more."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    config = phage.config(folder, *WORDS, "model.initializer_range=0.0", "train.steps=0")
    train(config, source="", out=folder / "run", monitor=Listener())
    totals = ledger(folder / "run", 0).totals()
    assert totals.bits_acgt == pytest.approx(2, abs=1e-6)
    assert totals.bits_full == pytest.approx(math.log2(65) / 3, abs=1e-6)


@pytest.fixture(scope="module")
def yeast(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> Data:
    """230 kb, 12.9 % soft-masked."""
    folder = tmp_path_factory.mktemp("yeast")
    return make_data(folder, genomes / "yeast_r64_chrI.fna.gz", context=4096, holdout="0.2")


def test_lower_case_counts_less_in_training_alone(yeast: Data, tmp_path: Path) -> None:
    plain = run(yeast, tmp_path / "plain", "train.steps=2")
    weighted = run(yeast, tmp_path / "weighted", "train.steps=2", "loss.softmask=0.1")
    assert np.array_equal(ledger(plain, 0).nats_full_sum, ledger(weighted, 0).nats_full_sum)
    a, b = (read_metrics(out / "metrics.jsonl") for out in (plain, weighted))
    assert [row["bases"] for row in a] == [row["bases"] for row in b]
    assert a[0]["loss_nats"] != b[0]["loss_nats"]
    assert ledger(plain, 2).totals().count == ledger(weighted, 2).totals().count
    assert ledger(plain, 2).totals().bits_full != ledger(weighted, 2).totals().bits_full


def test_the_weight_of_a_step_is_that_of_its_bases(yeast: Data) -> None:
    config = yeast.config(yeast.store.parent)
    data = open_data(yeast.store, yeast.windows, config.model)
    window = max(
        windows_of(data, "train"), key=lambda w: data.store.softmask(w.contig, w.start, w.end).mean()
    )
    lower = data.store.softmask(window.contig, window.start, window.end)[1:]
    batch = read_batch(data, [window], softmask=0.1)
    assert 0 < lower.sum() < len(lower)
    assert batch.weigh_targets() == pytest.approx((~lower).sum() + 0.1 * lower.sum(), rel=1e-6)
    assert batch.count_targets() == len(lower)
