"""Which order is chosen, on which bases a baseline is scored, and when it is computed again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_data import HEADER, read_genome

from genoctx.errors import InputError
from genoctx.report import baselines, cache
from genoctx.report.baselines import baseline_ledger, cross_validate, fit_best_order, split_folds
from genoctx.report.blocks import require_same_bases
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.report.markov import MarkovCounts, score

LAMBDA = read_genome("lambda_phage.fa.gz")
YEAST = read_genome("yeast_r64_chrI.fna.gz")


@dataclass
class Stretch:
    contig: str
    start: int
    end: int


class Genome:
    """A store in memory that counts how often it is asked."""

    def __init__(self, **contigs: np.ndarray) -> None:
        self.contigs = contigs
        self.asked = 0

    def codes(self, contig: str, start: int, end: int, /) -> np.ndarray:
        self.asked += 1
        return self.contigs[contig][start:end]


def model_ledger(genome: Genome, windows: list[tuple[str, int, int]], **header: Any) -> Ledger:
    """A ledger of a model that guesses uniformly over five tokens."""
    builder = LedgerBuilder({**HEADER, **header}, list(genome.contigs), 1024)
    for index, (contig, start, end) in enumerate(windows):
        codes = genome.contigs[contig][start:end]
        target = np.flatnonzero(codes < 4)
        target = target[target > 0]
        builder.window(index, contig, start, end)
        nats = np.full(len(target), math.log(5))
        builder.add(index, contig, start + target, nats, nats - math.log(1.25))
        builder.exclude("first base of its window", 1)
    return builder.build()


def chain(order: int, length: int, seed: int) -> np.ndarray:
    """Bases drawn from a random Markov chain of this order."""
    rng = np.random.default_rng(seed)
    cumulative = rng.dirichlet(np.full(4, 0.5), size=4**order).cumsum(axis=1)
    draws = rng.random(length)
    codes = np.zeros(length, dtype=np.uint8)
    context = 0
    for at in range(length):
        codes[at] = min(3, int(np.searchsorted(cumulative[context], draws[at])))
        context = (context * 4 + int(codes[at])) % 4**order
    return codes


@pytest.mark.parametrize("order", [0, 1, 3])
def test_the_order_of_a_chain_is_found(order: int) -> None:
    codes = chain(order, 60_000, seed=order)
    assert fit_best_order([("a", codes)], max_order=6)[0] == order


def test_on_real_dna_higher_is_not_better() -> None:
    chosen, bits = fit_best_order([("chrI", YEAST)], max_order=11)
    assert 2 <= chosen <= 6 and bits[chosen] == min(bits) < bits[0] < 2
    assert bits[11] > bits[8] > bits[chosen] + 0.02
    human = read_genome("human_hg19_chr3_42M.fa.gz")
    longer, _ = fit_best_order([("chr3", human)], max_order=11)
    assert longer > chosen, "ten times the sequence supports longer contexts"


def test_the_bits_are_those_of_leaving_out_each_contig() -> None:
    contigs = {"a": YEAST[:50_000], "b": YEAST[100_000:140_000], "c": LAMBDA[:45_000]}
    result = cross_validate(list(contigs.items()), max_order=4)
    assert result.by_contig and result.folds == 3 and result.scored == 135_000
    for order in range(5):
        nats = 0.0
        for left_out in contigs:
            counts = MarkovCounts(order)
            for name, codes in contigs.items():
                if name != left_out:
                    counts.add(codes)
            # a break first: the first base of a stretch is scored here, of a window it is not
            nats += np.nansum(score(counts.model(), np.insert(contigs[left_out], 0, 4)))
        assert result.bits[order] == pytest.approx(nats / math.log(2) / 135_000, rel=1e-10)
    everything = MarkovCounts(4)
    for codes in contigs.values():
        everything.add(codes)
    np.testing.assert_array_equal(score(result.counts.model(), LAMBDA), score(everything.model(), LAMBDA))


def test_folds_are_contigs_unless_one_has_most_bases() -> None:
    codes = np.zeros(1000, dtype=np.uint8)
    groups, by_contig = split_folds(
        [("a", codes), ("b", codes[:600]), ("a", codes[:10]), ("c", codes[:500])], 2
    )
    assert by_contig and sorted(sum(map(len, g)) for g in groups) == [1010, 1100]
    many = [(f"scaffold{i}", codes[: 10 + i]) for i in range(50)]
    groups, by_contig = split_folds(many, 4)
    assert by_contig and len(groups) == 4 and sum(len(g) for g in groups) == 50
    groups, by_contig = split_folds([("a", codes), ("b", codes[:200])], 4)
    assert not by_contig and [sum(map(len, g)) for g in groups] == [300] * 4
    with pytest.raises(InputError):
        split_folds([("a", codes[:3])], 4)


def test_nothing_but_breaks_is_nothing_to_train_on() -> None:
    with pytest.raises(InputError, match="no A, C, G or T"):
        fit_best_order([("a", np.full(1000, 4, dtype=np.uint8))], max_order=2)


def test_a_large_genome_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "STRETCH", 1000)
    monkeypatch.setattr(baselines, "SCORED_BASES", 20_000)
    result = cross_validate([("chrI", YEAST)], max_order=3)
    assert 18_000 < result.scored <= 20_000
    whole = baselines._sample([YEAST], 5_000)
    starts = [part.ctypes.data - YEAST.ctypes.data for part in whole]
    assert starts[0] == 0 and starts[-1] >= 229_000 and max(np.diff(starts)) <= 60_000


def test_a_baseline_scores_exactly_the_bases_of_the_ledger() -> None:
    codes = YEAST.copy()
    codes[[70_000, 71_000]] = 4
    codes[72_000:73_000] = 7
    genome = Genome(chrI=codes, lam=LAMBDA)
    ledger = model_ledger(genome, [("chrI", 65_000, 75_001), ("lam", 0, 3_000)])
    counts = MarkovCounts(4)
    counts.add(YEAST[:65_000])
    baseline = baseline_ledger(ledger, genome.codes, counts.model(2))
    require_same_bases(ledger, baseline)
    assert baseline.totals().count == 10_001 - 1_002 - 1 + 2_999
    assert baseline.header["order"] == 2 and baseline.header["windows_digest"] == HEADER["windows_digest"]
    expected = np.nansum(score(counts.model(2), codes[65_000:75_001]))
    expected += np.nansum(score(counts.model(2), LAMBDA[:3_000]))
    assert baseline.totals().nats_acgt_sum == pytest.approx(expected, rel=1e-12)
    assert baseline.totals().nats_full_sum == baseline.totals().nats_acgt_sum
    genome.contigs["chrI"] = YEAST
    with pytest.raises(InputError, match="not the bases"):
        baseline_ledger(ledger, genome.codes, counts.model(2))
    genome.contigs["lam"] = LAMBDA[:2_000]
    with pytest.raises(InputError, match="no bases 1 to 3000"):
        baseline_ledger(model_ledger(Genome(lam=LAMBDA), [("lam", 0, 3_000)]), genome.codes, counts.model(2))


def test_baselines_are_kept_beside_the_ledger(tmp_path: Path) -> None:
    genome = Genome(chrI=YEAST)
    ledger = model_ledger(genome, [("chrI", 200_000, 210_000)])
    training = [Stretch("chrI", 0, 60_000), Stretch("chrI", 50_000, 150_000)]
    keep = tmp_path / "baselines.npz"
    assert cache.load_baselines(keep, ledger) is None
    made = cache.genome_baselines(ledger, genome, training, keep)
    kept = cache.load_baselines(keep, ledger)
    assert kept is not None and list(kept) == list(made) and next(iter(made)) == "order-0"
    for name, baseline in made.items():
        assert kept[name].header == baseline.header
        for column in ("count", "nats_full_sum", "nats_acgt_sum", "nats_full_sq_sum"):
            np.testing.assert_array_equal(getattr(kept[name], column), getattr(baseline, column))
    assert made["order-0"].header["train_bases"] == 150_000, "overlapping training windows count once"
    assert list(made)[-1] == "adaptive" and made["adaptive"].header["copy"] == [12, 24]
    best = list(made.values())[-2]
    assert best.header["cross_validation"]["bits"][best.header["order"]] < 2
    assert best.totals().bits_acgt < made["order-0"].totals().bits_acgt < 2


NAMES = ("third/0", "third/1", "third/2", "half/left", "half/right")


def strata_at(contig: str, start: int, end: int) -> np.ndarray:
    at = np.arange(start, end)
    return np.stack([at % 3, 3 + (at >= 205_000)]).astype(np.uint8)


def divided_ledger(genome: Genome, strata: Callable[[str, int, int], np.ndarray]) -> Ledger:
    builder = LedgerBuilder({**HEADER}, ["chrI"], 512, strata=NAMES)
    for index, (start, end) in enumerate([(200_000, 206_000), (206_000, 210_000)]):
        builder.window(index, "chrI", start, end)
        builder.exclude("first base of its window", 1)
        here = strata("chrI", start, end)[:, 1:]
        builder.add(index, "chrI", np.arange(start + 1, end), *np.ones((2, end - start - 1)), strata=here)
    return builder.build()


def test_baselines_are_divided_as_the_ledger_is(tmp_path: Path) -> None:
    genome, keep = Genome(chrI=YEAST), tmp_path / "baselines.npz"
    ledger = divided_ledger(genome, strata_at)
    training = [Stretch("chrI", 0, 150_000)]
    made = cache.genome_baselines(ledger, genome, training, keep, strata_at)
    kept = cache.load_baselines(keep, ledger)
    assert kept is not None and ledger.strata is not None
    counts = MarkovCounts(0)
    counts.add(YEAST[:150_000])
    nats = [
        score(counts.model(0), YEAST[start:end])[1:]
        for start, end in [(200_000, 206_000), (206_000, 210_000)]
    ]
    at = np.concatenate([np.arange(200_001, 206_000), np.arange(206_001, 210_000)])
    for name, baseline in made.items():
        strata = baseline.strata
        again = kept[name].strata
        assert strata is not None and again is not None and strata.names == NAMES
        for column in ("window", "block_start", "stratum", "count", "nats_full_sum", "nats_acgt_sum"):
            np.testing.assert_array_equal(getattr(again, column), getattr(strata, column))
    order_0 = made["order-0"].strata
    assert order_0 is not None
    for number in range(3):
        found = order_0.nats_acgt_sum[order_0.stratum == number].sum()
        assert found == pytest.approx(np.concatenate(nats)[at % 3 == number].sum(), rel=1e-12)
    other = divided_ledger(
        genome, lambda *where: (strata_at(*where) + np.array([[1], [0]])) % np.array([[3], [9]])
    )
    assert cache.load_baselines(keep, other) is None, "other strata of the same bases"
    with pytest.raises(InputError, match="not the strata"):
        cache.genome_baselines(other, genome, training, keep, strata_at)
    undivided = cache.genome_baselines(ledger, genome, training, keep)
    assert all(baseline.strata is None for baseline in undivided.values())
    kept = cache.load_baselines(keep, ledger)
    assert kept is not None and all(baseline.strata is None for baseline in kept.values())


def test_kept_baselines_of_anything_else_are_not_used(tmp_path: Path) -> None:
    genome = Genome(chrI=YEAST)
    ledger = model_ledger(genome, [("chrI", 200_000, 210_000)])
    keep = tmp_path / "baselines.npz"
    cache.genome_baselines(ledger, genome, [Stretch("chrI", 0, 100_000)], keep)
    assert cache.load_baselines(keep, ledger) is not None
    for key in ("store_digest", "windows_digest"):
        for value in ("another", None):
            other = dataclasses.replace(ledger, header={**ledger.header, key: value})
            assert cache.load_baselines(keep, other) is None, key
    assert cache.load_baselines(keep, model_ledger(genome, [("chrI", 200_000, 209_000)])) is None
    unnamed = dataclasses.replace(ledger, header={**ledger.header, "store_digest": None})
    cache.save_baselines(tmp_path / "unnamed.npz", unnamed, {"order-0": ledger})
    assert cache.load_baselines(tmp_path / "unnamed.npz", unnamed) is None, "of which genome?"
    keep.write_bytes(keep.read_bytes()[:-100])
    assert cache.load_baselines(keep, ledger) is None
    with pytest.raises(InputError, match="no training windows"):
        cache.genome_baselines(ledger, genome, [], keep)


def test_a_place_that_cannot_be_written_costs_no_baselines(tmp_path: Path) -> None:
    genome = Genome(chrI=YEAST)
    ledger = model_ledger(genome, [("chrI", 200_000, 210_000)])
    keep = tmp_path / "missing" / "baselines.npz"
    assert cache.genome_baselines(ledger, genome, [Stretch("chrI", 0, 100_000)], keep)
    assert not keep.exists()


def test_windows_are_merged_contig_by_contig() -> None:
    windows = [
        Stretch("b", 0, 5),
        Stretch("a", 10, 20),
        Stretch("a", 0, 10),
        Stretch("a", 12, 15),
        Stretch("a", 30, 40),
    ]
    assert cache.merged_stretches(windows) == [("a", 0, 20), ("a", 30, 40), ("b", 0, 5)]
