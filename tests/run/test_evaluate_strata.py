"""What an evaluation writes beside its rows, against the letters of the FASTA file and the store's classes."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import Data, Listener

from genoctx.engine.engine import Engine
from genoctx.errors import CheckFailed, GenoctxError, InputError
from genoctx.genome.region_classes import CLASSES
from genoctx.genome.store import ingest
from genoctx.genome.windows import Window, cut, read_table, write_table
from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid
from genoctx.report.coverage import check_coverage
from genoctx.report.ledger import Ledger, merge
from genoctx.run.data import Data as OpenData
from genoctx.run.data import open_data, read_batch, windows_of
from genoctx.run.evaluate import Extras, evaluate
from genoctx.run.score import bases_of, by_index, other_strand, score_windows
from genoctx.run.strata import GC_TILE, stratum_names


@pytest.fixture(scope="module")
def yeast(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> OpenData:
    """Yeast chromosome I with its annotation, in windows that are aligned to nothing."""
    folder = tmp_path_factory.mktemp("yeast")
    gff = str(genomes / "yeast_r64_chrI.gff3.gz")
    store = ingest([genomes / "yeast_r64_chrI.fna.gz"], folder / "store", annotations=[gff])
    table, _ = cut(store, context=3000, holdout="0.1", guard=500, seed=2)
    write_table(table, folder / "windows.bed")
    return open_data(folder / "store", folder / "windows.bed", ModelConfig(vocab_size=16))


@pytest.fixture(scope="module")
def yeast_text(genomes: Path) -> str:
    lines = gzip.decompress((genomes / "yeast_r64_chrI.fna.gz").read_bytes()).decode().split("\n")
    return "".join(line for line in lines if not line.startswith(">"))


def scored(model: Hybrid, data: OpenData, windows: tuple[Window, ...], chunk: int = 700) -> Ledger:
    return score_windows(Engine(model, chunk), data, by_index(data, windows), {})


def counts_of(ledger: Ledger) -> dict[str, int]:
    assert ledger.strata is not None
    totals = np.bincount(ledger.strata.stratum, ledger.strata.count)
    return {ledger.strata.names[i]: int(n) for i, n in enumerate(totals) if n}


def test_strata_are_those_of_the_fasta_file_and_the_annotation(
    model: Hybrid, yeast: OpenData, yeast_text: str
) -> None:
    windows = windows_of(yeast, "holdout", 4)
    wanted: dict[str, int] = {}
    for window in windows:
        classes = yeast.store.regions(window.contig, window.start, window.end)
        for position in range(window.start + 1, window.end):
            letter = yeast_text[position]
            if letter.upper() not in "ACGT":
                continue
            tile = yeast_text[position // GC_TILE * GC_TILE :][:GC_TILE].upper()
            gc = sum(map(tile.count, "GC")) / sum(map(tile.count, "ACGT"))
            names = (
                "mask/soft-masked" if letter.islower() else "mask/unmasked",
                f"gc/{min(int(10 * gc), 9)}",
                f"region/{CLASSES[classes[position - window.start]]}",
            )
            for name in names:
                wanted[name] = wanted.get(name, 0) + 1
    found = counts_of(scored(model, yeast, windows))
    assert found == wanted
    assert {"mask/soft-masked", "region/CDS1", "region/CDS2", "region/CDS3", "region/intergenic"} <= set(
        found
    )


def test_a_store_without_annotation_has_no_regions(model: Hybrid, gapped_data: OpenData) -> None:
    ledger = scored(model, gapped_data, windows_of(gapped_data, "holdout"))
    assert ledger.strata is not None and ledger.strata.facets == ("mask", "gc")
    assert ledger.strata.names == stratum_names(gapped_data.store)
    assert ledger.problem() == ""


def test_calibration_is_that_of_the_probabilities(
    model: Hybrid, gapped_data: OpenData, gapped_text: str
) -> None:
    """Of one plain forward pass over the letters."""
    window = windows_of(gapped_data, "holdout")[1]
    letters = gapped_text[window.start : window.end].upper()
    ids = torch.tensor([["ACGTN".find(base) if base in "ACGT" else 4 for base in letters]])
    with torch.no_grad():
        hidden = model(ids, model.initial_carry(1, ids.shape[1])).hidden[0]
        chances = (hidden @ model.lm_head.weight.T)[:, :4].softmax(-1).double()
    keep = ids[0, 1:] < 4
    chances, truth = chances[:-1][keep], ids[0, 1:][keep]
    found = scored(model, gapped_data, (window,)).calibration
    assert found is not None
    batch = read_batch(gapped_data, [window])
    parts = list(Engine(model, 100).score(batch, torch.tensor(gapped_data.codec.words)))
    p = np.concatenate([b.chances for part in parts for b in bases_of(part, batch, gapped_data)])
    np.testing.assert_allclose(p, chances.numpy(), atol=1e-5)
    assert found.p_sum.sum() == pytest.approx(len(truth), abs=1e-4) and found.hits.sum() == len(truth)
    # the sum of p by truth, from the histogram's side: what was hit has its mean probability in its bin
    low = np.arange(20) / 20
    held = found.count > 0
    mean = found.p_sum[held] / found.count[held]
    assert (mean >= low[held] - 1e-9).all() and (mean <= low[held] + 0.05 + 1e-9).all()
    true_bins = np.minimum((chances.gather(1, truth.unsqueeze(1)).squeeze(1).numpy() * 20).astype(int), 19)
    assert np.abs(found.hits - np.bincount(true_bins, minlength=20)).sum() <= 2  # one on the edge of two bins


@pytest.mark.parametrize("chunk", [2048, 131])
def test_parts_do_not_depend_on_the_chunk(chunk: int, model: Hybrid, phage_data: OpenData) -> None:
    windows = windows_of(phage_data, "holdout", 2)
    assert_near(scored(model, phage_data, windows, chunk), scored(model, phage_data, windows))


def test_parts_do_not_depend_on_the_order(model: Hybrid, phage_data: OpenData) -> None:
    windows = list(windows_of(phage_data, "holdout"))
    a = scored(model, phage_data, tuple(windows))
    random.Random(1).shuffle(windows)
    b = scored(model, phage_data, tuple(windows))
    assert_near(a, b)
    half = len(windows) // 2
    parts = [scored(model, phage_data, tuple(some)) for some in (windows[:half], windows[half:])]
    assert_near(merge(*parts), a)


def assert_near(a: Ledger, b: Ledger) -> None:
    """Counts equal, sums to 1e-6 nat per base; probabilities within one float32 step of a bin may change it."""
    for part, exact in (("strata", ("window", "block_start", "stratum", "count")), ("positions", ("count",))):
        one, other = getattr(a, part), getattr(b, part)
        for name in exact:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert np.abs(one.nats_acgt_sum - other.nats_acgt_sum).max() / a.count.sum() <= 1e-6
    assert a.calibration is not None and b.calibration is not None
    assert np.abs(a.calibration.count - b.calibration.count).sum() <= 1e-3 * a.count.sum()
    assert abs(a.calibration.p_sum.sum() - b.calibration.p_sum.sum()) <= 1e-6 * a.count.sum()


# the other strand


def test_the_other_strand_is_scored_beside(
    model: Hybrid, gapped_data: OpenData, gapped: Data, tmp_path: Path
) -> None:
    """As a table says it whose windows are turned."""
    windows, listener = windows_of(gapped_data, "holdout", 4), Listener()
    made = evaluate(
        model,
        gapped_data,
        windows,
        chunk=700,
        step=1,
        out=tmp_path / "e",
        monitor=listener,
        extras=Extras(rc=True),
    )
    found = Ledger.load(tmp_path / "e/ledger-rc.npz")
    table = tmp_path / "reversed.bed"
    table.write_text(gapped.windows.read_text().replace("\t+\tholdout", "\t-\tholdout"))
    turned = open_data(gapped.store, table, ModelConfig(vocab_size=16))
    wanted = scored(model, turned, windows_of(turned, "holdout", 4))
    assert found.totals() == wanted.totals() != made.ledger.totals()
    assert (found.header["strand"], made.ledger.header["strand"]) == ("-", "+")
    with pytest.raises(InputError, match="strand"):
        merge(found, made.ledger)
    summary = made.summary()
    assert summary["reverse"]["bits_acgt"] == wanted.totals().bits_acgt
    assert summary["both"]["bits_full"] == (summary["bits_full"] + wanted.totals().bits_full) / 2
    assert f"mean of both strands {summary['both']['bits_acgt']:.4f}" in listener.text
    assert other_strand(other_strand(windows[0])) == windows[0]


# every window, every base


def test_windows_that_are_missing_repeated_or_foreign_are_refused(
    model: Hybrid, gapped_data: OpenData
) -> None:
    windows, header = windows_of(gapped_data, "holdout"), {"split": "holdout"}
    with pytest.raises(InputError, match="twice"):
        by_index(gapped_data, (*windows, windows[0]))

    def ledger_of(*chosen: Window, **more: Any) -> Ledger:
        return score_windows(
            Engine(model, 512), gapped_data, by_index(gapped_data, chosen), {**header, **more}
        )

    check_coverage(ledger_of(*windows), gapped_data.table)
    check_coverage(ledger_of(*windows[:3], limit=3), gapped_data.table)
    with pytest.raises(CheckFailed, match=r"1 are missing \(gaps:513-1024\)"):
        check_coverage(ledger_of(windows[0], *windows[2:]), gapped_data.table)
    with pytest.raises(CheckFailed, match=r"1 are missing .*, 1 are not of it"):
        check_coverage(ledger_of(windows[0], windows[2], limit=2), gapped_data.table)
    extra = next(w for w in gapped_data.table.windows if w.split == "train")
    with pytest.raises(CheckFailed, match="0 are missing, 1 are not of it"):
        check_coverage(ledger_of(*windows, extra), gapped_data.table)


def test_a_base_that_was_passed_over_stops_everything(
    model: Hybrid, gapped_data: OpenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def but_one(*args: Any, **more: Any) -> Any:
        for bases in bases_of(*args, **more):
            yield replace(
                bases, **{k: getattr(bases, k)[1:] for k in ("offset", "nats_full", "nats_acgt", "chances")}
            )

    monkeypatch.setattr("genoctx.run.score.bases_of", but_one)
    with pytest.raises(GenoctxError, match=r"gaps:1-512: \d+ bases were scored, the genome has \d+ to score"):
        scored(model, gapped_data, windows_of(gapped_data, "holdout"), 512)


def test_everything_reconciles_with_a_real_fasta_file(model: Hybrid, genomes: Path, tmp_path: Path) -> None:
    """Vertebrate contigs with N and lower case as they are, and a few letters of each IUPAC code set in."""
    lines = (
        gzip.decompress((genomes / "vertebrates_orthologous_8sp.fa.gz").read_bytes()).decode().split(">")[1:]
    )
    contigs = {}
    for record in lines:
        name, *rows = record.split("\n")
        contigs[name.split()[0]] = "".join(rows)
    name, whole = next((n, text) for n, text in contigs.items() if "N" in text[5_000:45_000])
    at = max(0, whole.index("N", 5_000) - 12_000)
    bases = list(whole[at : at + 24_123])
    for i, code in zip(range(17, len(bases), 1_303), "RYSWKMBDHVryswkmbdhv", strict=False):
        bases[i] = code
    fasta = tmp_path / "real.fa"
    fasta.write_text(f">first\n{''.join(bases[:9_000])}\n>{name}\n{''.join(bases)}\n")
    store = ingest([fasta], tmp_path / "store")
    table, _ = cut(store, context=4_000, holdout=name, max_n=1.0)
    write_table(table, tmp_path / "t.bed")
    data = open_data(tmp_path / "store", tmp_path / "t.bed", ModelConfig(vocab_size=16))
    windows = windows_of(data, "holdout")
    made = evaluate(
        model,
        data,
        windows,
        chunk=900,
        step=0,
        out=tmp_path / "e",
        monitor=Listener(),
        extras=Extras(rc=True, contexts=(500,)),
    )

    text, size = "", 0  # a parser of its own
    for line in fasta.read_text().split("\n"):
        text, size = (text + line, size) if not line.startswith(">") else ("", size + 1)
    kept = [text[start : start + 4_000] for start in range(0, len(text) - 3_999, 4_000)]
    known = [sum(base in "ACGTacgt" for base in window) for window in kept]
    first = sum(window[0] in "ACGTacgt" for window in kept)
    last = sum(window[-1] in "ACGTacgt" for window in kept)
    assert len(kept) == 6 == len(windows) and size == 2
    assert made.ledger.totals().count == sum(known) - first
    assert made.reverse is not None and made.reverse.totals().count == sum(known) - last
    assert sum(made.ledger.excluded.values()) == 6 * 4_000 - sum(known) + first
    assert made.contexts is not None
    late = sum(base in "ACGTacgt" for window in kept for base in window[2_000:])
    assert made.contexts.count.sum() == 2 * late
    assert 0 < made.contexts.count[made.contexts.seen == 1].sum() < late
    by_block: dict[int, int] = {}
    for i, base in enumerate(text[: 6 * 4_000]):
        by_block[i // 8192] = by_block.get(i // 8192, 0) + (base in "ACGTacgt" and i % 4_000 > 0)
    found = np.bincount(made.ledger.block_start // 8192, made.ledger.count)
    assert found.tolist() == list(by_block.values())
    check_coverage(Ledger.load(tmp_path / "e/ledger.npz"), read_table(tmp_path / "t.bed"))
