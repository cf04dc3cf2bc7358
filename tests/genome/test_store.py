import gzip
import hashlib
import json
import os
import random
import re

import numpy as np
import pytest
from genome_helpers import GENOMES, bgzip, fasta, gzip_members
from hypothesis import given
from hypothesis import strategies as st

from genoctx.errors import InputError
from genoctx.genome.alphabet import decode, encode
from genoctx.genome.manifest import Contig, Manifest, content_digest, write_manifest
from genoctx.genome.store import GenomeStore, ingest

# name of the file: contig, length, runs of N, N, and what Python's own hands counted
REAL = {
    "human_hg19_chr3_42M.fa.gz": ("chr3", 2_000_001, 0, 0),
    "human_hg19_chr4_103M.fa.gz": ("chr4", 2_000_001, 0, 0),
    "human_hg19_chr5_124M.fa.gz": ("chr5", 2_000_001, 0, 0),
    "human_hs37_chrX_1-6000000.fa.gz": ("X", 6_000_000, 7, 360_000),
    "lambda_phage.fa.gz": ("gi|9626243|ref|NC_001416.1|", 48_502, 0, 0),
    "yeast_r64_chrI.fna.gz": ("NC_001133.9", 230_218, 0, 0),
}


def naive(path) -> bytes:
    """The bases of a file with one record, as they are written."""
    return b"".join(gzip.open(path).read().split(b"\n")[1:])


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return ingest([GENOMES / name for name in REAL], tmp_path_factory.mktemp("real") / "store")


def test_real_genomes_have_their_known_sizes(real):
    found = {c.source: (c.name, c.length, c.n_runs, c.n_count) for c in real.contigs}
    assert found == REAL
    assert real.bases == sum(length for _, length, _, _ in REAL.values())
    assert real.n_runs == 7


@pytest.mark.parametrize("name", REAL)
def test_real_genomes_base_by_base(real, name):
    letters = naive(GENOMES / name)
    contig = real.contig(REAL[name][0])
    assert decode(real.codes(contig.name, 0, contig.length)) == letters.upper()
    lower = np.frombuffer(letters, dtype=np.uint8) >= ord("a")
    assert np.array_equal(real.softmask(contig.name, 0, contig.length), lower)
    upper = letters.upper()
    gc = upper.count(b"G") + upper.count(b"C")
    assert contig.gc == gc / (gc + upper.count(b"A") + upper.count(b"T"))
    assert contig.softmask_fraction == lower.mean()
    assert contig.iupac_counts == {}


def test_yeast_is_soft_masked(real):
    assert round(real.contig("NC_001133.9").softmask_fraction, 3) == 0.129
    assert real.contig("chr3").softmask_fraction == 0
    assert real.warnings == ()


def test_files_are_what_the_format_says(small):
    assert sorted(p.name for p in small.path.iterdir()) == ["codes.u8", "manifest.json", "softmask.bits"]
    codes = (small.path / "codes.u8").read_bytes()
    assert decode(np.frombuffer(codes, dtype=np.uint8)) == b"ACGTNNACGTRRYNNNNGATTACA"
    bits = np.unpackbits(np.frombuffer((small.path / "softmask.bits").read_bytes(), dtype=np.uint8))
    assert bits.tolist() == [0] * 6 + [1] * 4 + [0] * 7 + [1] * 7
    manifest = json.loads((small.path / "manifest.json").read_text())
    assert manifest["sources"][0]["path"] == "g.fa"
    assert (
        manifest["sources"][0]["sha256"] == hashlib.sha256((small.path / "../g.fa").read_bytes()).hexdigest()
    )
    table = manifest["contigs"]
    contigs = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert contigs[0]["sha256"] == hashlib.sha256(codes[:13]).hexdigest()
    assert (manifest["schema"], manifest["annotations"], manifest["regions_sha256"]) == (2, [], "")
    lines = [f"{c['name']}\t{c['length']}\t{c['sha256']}\n" for c in contigs]
    assert manifest["digest"] == hashlib.sha256(("genoctx-store 1\n" + "".join(lines)).encode()).hexdigest()


def test_contigs_carry_their_counts(small):
    a, b, c = small.contigs
    assert (a.n_runs, a.n_count, a.iupac_counts, a.gc) == (1, 2, {"R": 2, "Y": 1}, 0.5)
    assert (b.n_runs, b.n_count, b.gc, b.softmask_fraction) == (1, 4, 0.0, 0.0)
    assert (c.offset, c.softmask_fraction, c.line, c.source) == (17, 1.0, 5, "g.fa")


def test_codes_are_a_read_only_view(small):
    codes = small.codes("a", 2, 6)
    assert type(codes) is np.ndarray
    assert codes.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        codes[0] = 1
    assert small.codes("a", 3, 3).size == 0
    assert small.softmask("c", 0, 0).size == 0


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (0, 14), (5, 4), (13, 14)])
def test_nothing_outside_a_contig_can_be_read(small, start, end):
    for read in (small.codes, small.softmask):
        with pytest.raises(InputError, match="outside the contig, which has 13 bases"):
            read("a", start, end)


def test_unknown_contig_names_what_there_is(small):
    with pytest.raises(InputError, match="no contig 'chrA'") as caught:
        small.codes("chrA", 0, 1)
    assert "a, b, c" in caught.value.hint


# identity of the content


def test_digest_ignores_layout_case_and_compression(tmp_path):
    records = {"a": "ACGTRN" * 50, "b": "GATTACA"}
    lower = {name: bases.lower() for name, bases in records.items()}
    layouts = [
        fasta(records),
        fasta(records, width=7, end="\r\n", final=False),
        gzip_members(fasta(lower), 3),
        bgzip(fasta(records)),
    ]
    digests = set()
    for i, data in enumerate(layouts):
        (tmp_path / f"{i}.fa").write_bytes(data)
        digests.add(ingest(tmp_path / f"{i}.fa", tmp_path / f"store{i}", name=f"n{i}").digest)
    (tmp_path / "x.fa").write_bytes(fasta({"a": records["a"]}))
    (tmp_path / "y.fa").write_bytes(fasta({"b": records["b"]}))
    digests.add(ingest([tmp_path / "x.fa", tmp_path / "y.fa"], tmp_path / "joined").digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    "other",
    [{"a": "ACGA", "b": "GG"}, {"a": "ACGT", "c": "GG"}, {"a": "ACGTG", "b": "G"}, {"b": "GG", "a": "ACGT"}],
)
def test_digest_changes_with_every_base_name_and_order(tmp_path, other):
    digests = []
    for i, records in enumerate([{"a": "ACGT", "b": "GG"}, other]):
        (tmp_path / f"{i}.fa").write_bytes(fasta(records))
        digests.append(ingest(tmp_path / f"{i}.fa", tmp_path / f"s{i}").digest)
    assert digests[0] != digests[1]


# what is read over, and said


def test_warnings(tmp_path):
    (tmp_path / "g.fa").write_bytes(b"\xef\xbb\xbf>a\nacgu\n>empty\n>b\nacgt\n")
    store = ingest(tmp_path / "g.fa", tmp_path / "s")
    assert [c.name for c in store.contigs] == ["a", "b"]
    text = "\n".join(store.warnings)
    assert "byte order mark" in text
    assert "1 records without bases were skipped: empty" in text
    assert "1 U were read as T" in text
    assert "100.0 % of the bases are lower case: that is a way of writing" in text
    assert GenomeStore.open(tmp_path / "s").warnings == store.warnings


def test_only_empty_records(tmp_path):
    (tmp_path / "g.fa").write_bytes(b">a\n>b\n\n")
    with pytest.raises(InputError, match="no sequence has any bases"):
        ingest(tmp_path / "g.fa", tmp_path / "s")
    assert os.listdir(tmp_path) == ["g.fa"]


def test_duplicate_names_over_two_files(tmp_path):
    (tmp_path / "x.fa").write_bytes(b">a\nA\n")
    (tmp_path / "y.fa").write_bytes(b">b\nA\n>a\nA\n")
    with pytest.raises(
        InputError, match=r"y.fa, line 3: the name 'a' is used twice, first in .*x.fa, line 1"
    ):
        ingest([tmp_path / "x.fa", tmp_path / "y.fa"], tmp_path / "s")


def test_n_runs_over_piece_borders(tmp_path, monkeypatch):
    (tmp_path / "g.fa").write_bytes(
        b">a\nANNNNNNNNNNNNNNNNNNNNNNNNNNNNNCNNNNNNNNNNNNNNNN\n>b\nNNA\nN\n>c\nN\n"
    )
    for block in range(1, 12):
        monkeypatch.setattr("genoctx.genome.source.BLOCK", block)
        monkeypatch.setattr("genoctx.genome.source._RAW_BLOCK", block)
        monkeypatch.setattr("genoctx.genome.builder._BATCH", 2 * block - 1)
        store = ingest(tmp_path / "g.fa", tmp_path / "s", force=True)
        assert [c.n_runs for c in store.contigs] == [2, 2, 1]


def test_positions_beyond_31_bits(tmp_path):
    """A contig longer than 2^31 with another behind it; the files have holes and take no room."""
    long = 2**31 + 5
    contigs = tuple(
        Contig(name, length, offset, "", 0.5, 0, 0, {}, 0.0, 0, "g.fa", 1)
        for name, length, offset in (("a", long, 0), ("b", 11, long))
    )
    digest = content_digest(contigs)
    manifest = Manifest("g", "", "", digest, (), (), contigs, "", "0", ())
    write_manifest(tmp_path / "manifest.json", manifest)
    for name in ("codes.u8", "regions.u8"):
        with (tmp_path / name).open("wb") as file:
            file.seek(long - 3)
            file.write(bytes([1, 2, 3, 4, *range(10)]))
    with (tmp_path / "softmask.bits").open("wb") as file:
        file.seek((long - 3) // 8)
        file.write(np.packbits([0, 0, 1, 0, 1, 1, 0, 0] + [0, 1] * 4).tobytes())
    store = GenomeStore.open(tmp_path)
    assert store.bases == 2**31 + 16
    for read in (store.codes, store.regions):
        assert read("a", long - 3, long).tolist() == [1, 2, 3]
        assert read("b", 0, 11).tolist() == [4, *range(10)]
    assert store.softmask("a", long - 3, long).tolist() == [True, False, True]
    assert store.softmask("b", 0, 5).tolist() == [True, False, False, False, True]


def test_many_short_contigs(tmp_path):
    """Counted together, stored one by one: names, digests and statistics of each."""
    draw = random.Random(3)
    records = {f"s{n}": "".join(draw.choices("ACGTNRacgtn", k=draw.randint(1, 40))) for n in range(5000)}
    (tmp_path / "g.fa").write_bytes(fasta(records))
    store = ingest(tmp_path / "g.fa", tmp_path / "s")
    assert [contig.name for contig in store.contigs] == list(records)
    for contig in store.contigs:
        text = records[contig.name]
        upper = text.upper()
        codes = encode(text.encode())
        assert contig.sha256 == hashlib.sha256(codes).hexdigest()
        assert np.array_equal(store.codes(contig.name, 0, len(text)), codes)
        assert contig.n_count == upper.count("N") and contig.n_runs == len(re.findall("N+", upper))
        assert contig.softmask_fraction == sum(map(str.islower, text)) / len(text)
        assert contig.iupac_counts.get("R", 0) == upper.count("R")


# whatever the layout

bases = st.text(alphabet="ACGTNRYSWKMBDHVacgtnryswkmbdhv", max_size=60)


@given(
    st.dictionaries(st.sampled_from(["chr1", "2", "X|y", "scaffold_7"]), bases, min_size=1),
    st.integers(1, 70),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([bytes, gzip.compress, lambda d: gzip_members(d, 4), lambda d: bgzip(d, block=37)]),
    st.integers(1, 50),
    st.integers(1, 200),
)
def test_what_goes_in_comes_out(tmp_path_factory, records, width, end, pack, block, batch):
    folder = tmp_path_factory.mktemp("roundtrip")
    (folder / "g").write_bytes(pack(fasta(records, width, end)))
    kept = {name: text for name, text in records.items() if text}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genoctx.genome.source.BLOCK", block)
        patch.setattr("genoctx.genome.builder._BATCH", batch)
        if not kept:
            with pytest.raises(InputError):
                ingest(folder / "g", folder / "s")
            return
        store = ingest(folder / "g", folder / "s")
    assert [contig.name for contig in store.contigs] == list(kept)
    for contig in store.contigs:
        text = kept[contig.name]
        for start, end_ in ((0, len(text)), (len(text) // 3, len(text)), (0, len(text) // 2)):
            part = text[start:end_]
            assert decode(store.codes(contig.name, start, end_)).decode() == part.upper()
            assert store.softmask(contig.name, start, end_).tolist() == [c.islower() for c in part]
        assert contig.n_count == text.upper().count("N")
        assert contig.n_runs == len([run for run in _runs(text.upper()) if run[0] == "N"])
        assert sum(contig.iupac_counts.values()) == sum(c not in "ACGTN" for c in text.upper())


def _runs(text: str) -> list[str]:
    runs: list[str] = []
    for char in text:
        if runs and runs[-1][0] == char:
            runs[-1] += char
        else:
            runs.append(char)
    return runs
