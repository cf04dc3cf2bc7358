"""The audit against sets of strings, and on genomes whose leakage is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from genome_helpers import GENOMES, fasta
from hypothesis import given, settings
from hypothesis import strategies as st

from genoctx.errors import UsageError
from genoctx.genome import leakage
from genoctx.genome.leakage import audit, sample_rate, with_leakage, work
from genoctx.genome.store import ingest
from genoctx.genome.window_table import rows_digest
from genoctx.genome.windows import Window, cut, read_table, write_table
from genoctx.report.sources import leakage_of

OPPOSITE = str.maketrans("ACGT", "TGCA")
MASK = 2**64 - 1


def make_store(folder, records):
    (folder / "g.fa").write_bytes(fasta(records))
    return ingest(folder / "g.fa", folder / "store")


def window(contig, start, end, split, strand="+"):
    return Window(contig, start, end, f"{contig}:{start + 1}-{end} {split}", strand, split, 0.5, 0.0)


# the oracle


def splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def hash_of(kmer):
    return splitmix(int(kmer.translate(str.maketrans("ACGT", "0123")), 4))


def kmers_of(records, windows, split, k):
    """(contig, start, canonical k-mer) of the bases that windows of ``split`` cover."""
    found = []
    for contig, bases in records.items():
        covered = [False] * len(bases)
        for w in windows:
            if w.contig == contig and w.split == split:
                covered[w.start : w.end] = [True] * (w.end - w.start)
        for i in range(len(bases) - k + 1):
            kmer = bases[i : i + k]
            if all(covered[i : i + k]) and not set(kmer) - set("ACGT"):
                found.append((contig, i, min(kmer, kmer.translate(OPPOSITE)[::-1])))
    return found


def oracle(records, windows, k, one_in):
    held = kmers_of(records, windows, "holdout", k)
    held = [place for place in held if hash_of(place[2]) < 2**64 // one_in]
    train = {kmer for _, _, kmer in kmers_of(records, windows, "train", k)}
    fractions = []
    for w in windows:
        mine = [kmer in train for c, i, kmer in held if c == w.contig and w.start <= i < w.end]
        fractions.append(sum(mine) / len(mine) if mine and w.split == "holdout" else None)
    different = {kmer for _, _, kmer in held}
    occurrences = [kmer in train for _, _, kmer in held]
    return len(held), sum(occurrences), len(different), len(different & train), tuple(fractions)


@st.composite
def genomes_with_copies(draw):
    """Contigs put together from a few words, on both strands, so that they share k-mers."""
    words = draw(st.lists(st.text(alphabet="ACGT", min_size=5, max_size=40), min_size=1, max_size=4))
    words += [word.translate(OPPOSITE)[::-1] for word in words] + ["N"]
    contig = st.lists(st.sampled_from(words), min_size=1, max_size=12).map("".join)
    return {name: draw(contig) for name in draw(st.sampled_from(["a", "ab", "abc"]))}


@st.composite
def windows_of(draw, records):
    found = []
    for contig, bases in records.items():
        for _ in range(draw(st.integers(0, 5))):
            start = draw(st.integers(0, len(bases) - 1))
            end = draw(st.integers(start + 1, len(bases)))
            found.append(window(contig, start, end, draw(st.sampled_from(["train", "holdout", "test"]))))
    return found


@given(st.data(), st.integers(11, 31), st.sampled_from([1, 2, 5]))
@settings(max_examples=150)
def test_the_audit_equals_sets_of_strings(tmp_path_factory, data, k, parts):
    records = data.draw(genomes_with_copies())
    windows = data.draw(windows_of(records))
    store = make_store(tmp_path_factory.mktemp("audit"), records)
    held = sum(end - start for _, start, end in leakage.regions(windows, "holdout"))
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakage, "PER_PASS", max(1, -(-held // parts)))
        found = audit(store, windows, k=k, exact=True, progress=read.append)
        assert sum(read) == work(windows, True)
        patch.setattr(leakage, "SMALL", 0)
        patch.setattr(leakage, "ENOUGH", 0)
        patch.setattr(leakage, "SAMPLE", 4)
        sampled = audit(store, windows, k=k)
    for result, one_in in ((found, 1), (sampled, 4 if held else 1)):
        assert (result.k, result.one_in) == (k, one_in)
        numbers = (result.kmers, result.found, result.distinct, result.distinct_found, result.fractions)
        assert numbers == oracle(records, windows, k, one_in)
    assert found.error == 0.0


def test_a_copy_on_the_other_strand_leaks(tmp_path):
    word = "ACGGTTACGATTACACCGTGATTTAGGCCATAGC"
    store = make_store(tmp_path, {"a": word, "b": word.translate(OPPOSITE)[::-1], "c": word[:30] + "G" * 9})
    found = audit(store, [window("a", 0, 34, "train"), window("b", 0, 34, "holdout")], k=31)
    assert (found.kmers, found.found, found.share, found.distinct_share) == (4, 4, 1.0, 1.0)
    found = audit(store, [window("a", 0, 34, "train", "-"), window("c", 0, 39, "holdout")], k=31)
    assert (found.kmers, found.found, found.share) == (9, 0, 0.0)
    assert audit(store, [window("a", 0, 34, "train"), window("c", 0, 39, "holdout")], k=21).found == 10


def test_nothing_to_look_at_is_not_zero(tmp_path):
    store = make_store(tmp_path, {"a": "ACGT" * 20, "n": "N" * 80, "s": "ACGTTGCA"})
    for held in ("n", "s"):
        size = store.contig(held).length
        found = audit(store, [window("a", 0, 80, "train"), window(held, 0, size, "holdout")])
        assert (found.kmers, found.share, found.distinct_share) == (0, None, None)
        assert found.fractions == (None, None)
    assert audit(store, [window("a", 0, 80, "holdout")]).share == 0.0


@pytest.mark.parametrize("k", [10, 32])
def test_other_k_are_refused(tmp_path, k):
    with pytest.raises(UsageError, match=f"k-mers of {k}"):
        audit(make_store(tmp_path, {"a": "ACGT"}), [], k=k)


def test_small_splits_are_looked_at_whole_and_large_ones_enough():
    assert [sample_rate(bases) for bases in (0, 1000, 4_000_000)] == [1, 1, 1]
    for bases in (4_000_001, 5_000_000, 6_400_000, 10**7, 3 * 10**9):
        rate = sample_rate(bases)
        assert 1 < rate <= 64
        assert bases / rate >= 100_000
    assert sample_rate(3 * 10**9) == 64


def test_the_standard_error_is_that_of_a_ratio(tmp_path):
    """Every k-mer once: the binomial formula; every occurrence of a k-mer stands or falls together."""
    rng = np.random.default_rng(1)
    a, b = ("".join("ACGT"[i] for i in rng.integers(0, 4, 6000)) for _ in range(2))
    store = make_store(tmp_path, {"a": a, "b": a[:2000] + b, "c": (a[:2000] + "N") * 3 + b[:2000]})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALL", 0), ("ENOUGH", 0), ("SAMPLE", 4)):
            patch.setattr(leakage, name, value)
        once = audit(store, [window("a", 0, 6000, "train"), window("b", 0, 8000, "holdout")])
        often = audit(store, [window("a", 0, 6000, "train"), window("c", 0, 8003, "holdout")])
    assert once.kmers == once.distinct > 1000
    assert once.error == pytest.approx(math.sqrt(once.share * (1 - once.share) / once.kmers * 3 / 4))
    m, n = often.distinct_found, often.distinct - often.distinct_found
    assert (often.kmers, often.found) == (3 * m + n, 3 * m)
    variance = 3 / 4 * (m * (3 * (1 - often.share)) ** 2 + n * often.share**2) / often.kmers**2
    assert often.error == pytest.approx(math.sqrt(variance))


# genomes whose leakage was measured with other programs


@pytest.fixture(scope="module")
def coli(tmp_path_factory):
    return ingest(GENOMES / "ecoli_k12_mg1655.fna.gz", tmp_path_factory.mktemp("coli") / "store")


@pytest.fixture(scope="module")
def locus(tmp_path_factory):
    return ingest(GENOMES / "vertebrates_orthologous_8sp.fa.gz", tmp_path_factory.mktemp("locus") / "store")


def halves(store):
    contig = store.contigs[0]
    middle = contig.length // 2
    return [window(contig.name, 0, middle, "train"), window(contig.name, middle, contig.length, "holdout")]


def test_one_half_of_a_bacterium_shares_little_with_the_other(coli):
    found = audit(coli, halves(coli))
    assert found.one_in == 1
    assert found.kmers == coli.bases - coli.bases // 2 - 30
    assert 0.018 < found.share < 0.022


def test_an_orthologous_locus_of_seven_vertebrates_shows_little_of_the_eighth(locus):
    """Homology that diverged is beyond exact k-mers: most of what is shared here is with the macaque."""
    windows = [
        window(c.name, 0, c.length, "holdout" if c.name.startswith("hg38") else "train")
        for c in locus.contigs
    ]
    found = audit(locus, windows)
    assert 0.09 < found.share < 0.11
    monkey = [w for w in windows if w.contig.startswith(("hg38", "rheMac3"))]
    assert 0.9 * found.share < audit(locus, monkey).share < found.share


def test_random_windows_that_overlap_leak_almost_everything(coli):
    contig = coli.contigs[0]
    starts = range(0, contig.length - 65536 + 1, 32768)
    held = set(np.random.default_rng(0).permutation(len(starts))[: len(starts) // 10].tolist())
    windows = [
        window(contig.name, start, start + 65536, "holdout" if i in held else "train")
        for i, start in enumerate(starts)
    ]
    trained, heldout = np.zeros((2, contig.length), dtype=bool)
    for w in windows:
        (heldout if w.split == "holdout" else trained)[w.start : w.end] = True
    covered = trained[heldout].mean()
    assert covered > 0.85
    # k-mers across a border are in no training window, repeats are in others
    assert abs(audit(coli, windows).share - covered) < 0.02


@pytest.mark.parametrize("k", [11, 17, 31])
def test_a_sample_is_close_and_always_the_same(coli, monkeypatch, k):
    exact = audit(coli, halves(coli), k=k, exact=True)
    monkeypatch.setattr(leakage, "SMALL", 0)
    monkeypatch.setattr(leakage, "ENOUGH", 1000)
    sampled = audit(coli, halves(coli), k=k)
    assert sampled.one_in == 64
    assert (
        abs(sampled.distinct / exact.distinct - 1 / 64) < 5 * math.sqrt(exact.distinct / 64) / exact.distinct
    )
    assert 0 < sampled.error < 0.01
    assert abs(sampled.share - exact.share) < 5 * sampled.error
    assert audit(coli, halves(coli), k=k) == sampled


# the table


def test_what_was_found_goes_into_the_table(locus, tmp_path):
    table, _ = cut(locus, context=16384, holdout="hg38*")
    assert {w.leak_fraction for w in table.windows} == {None}
    found = audit(locus, table.windows, k=21)
    told = with_leakage(table, found, 0.25)
    write_table(told, tmp_path / "t.bed")
    again = read_table(tmp_path / "t.bed")
    assert (again.windows, again.header) == (told.windows, told.header)
    assert {key: again.header[key] for key in again.header if key.startswith("leak")} == {
        "leak_k": 21,
        "leak_sampled": "1/1",
        "leak_kmers": found.kmers,
        "leak_limit": 0.25,
        "leak_share": round(found.share, 6),
        "leak_error": 0.0,
        "leak_distinct": round(found.distinct_share, 6),
        "leak_rows": rows_digest(table.windows),
    }
    assert {w.leak_fraction for w in again.split("train")} == {None}
    held = again.split("holdout")
    assert [w.leak_fraction for w in held] == [round(f, 6) for f in found.fractions if f is not None]
    assert len({w.leak_fraction for w in held}) > 5
    assert tuple(replace(w, leak_fraction=None) for w in again.windows) == table.windows
    lines = (tmp_path / "t.bed").read_text().splitlines()
    columns = next(line for line in lines if line.startswith("#chrom")).split("\t")
    assert columns[-1] == "leak_fraction"
    assert all(line.endswith("\t.") for line in lines if "\ttrain\t" in line)


def test_an_audit_does_not_speak_of_rows_edited_since(locus, tmp_path):
    """Of another order or strand it does."""
    table, _ = cut(locus, context=16384, holdout="hg38*")
    path = tmp_path / "t.bed"
    write_table(with_leakage(table, audit(locus, table.windows, k=21), 0.25), path)
    lines = path.read_text().splitlines(keepends=True)
    rows = [line for line in lines if not line.startswith("#")]
    header = lines[: len(lines) - len(rows)]
    path.write_text("".join([*header, *(row.replace("\t+\t", "\t-\t") for row in reversed(rows))]))
    assert "leak_share" in read_table(path).header
    path.write_text("".join([*header, *rows[1:]]))
    edited = read_table(path)
    assert {key for key in edited.header if key.startswith("leak")} == {"leak_edited"}
    assert {w.leak_fraction for w in edited.windows} == {None}
    told = leakage_of(edited.header)
    assert told["audited"] is False and "edited since the audit" in told["reason"]


def test_a_table_where_nothing_could_be_looked_at_claims_no_share(tmp_path):
    store = make_store(tmp_path, {"a": "ACGT" * 20, "n": "N" * 80})
    windows = [window("a", 0, 80, "train"), window("n", 0, 80, "holdout")]
    table = cut(store, context=40, holdout="n", max_n=1)[0]
    told = with_leakage(table, audit(store, table.windows), 0.05)
    assert "leak_share" not in told.header
    assert told.header["leak_kmers"] == 0
    assert audit(store, windows).error == 0.0
