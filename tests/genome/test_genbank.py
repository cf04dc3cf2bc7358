import gzip
import io
import random
import sys

import numpy as np
import pytest
from Bio import SeqIO
from genome_helpers import GENOMES, bgzip
from hypothesis import given, settings
from hypothesis import strategies as st
from region_helpers import SIGNS, Board

from genoctx.errors import GenoctxError, InputError
from genoctx.genome import source as source_module
from genoctx.genome.alphabet import decode
from genoctx.genome.reader import ReadOptions, read_records
from genoctx.genome.source import Source

CHLAMYDIA = GENOMES / "chlamydia_trachomatis.gbk.gz"


def origin(bases: str) -> str:
    """The lines from ORIGIN to the end of a record."""
    lines = ["ORIGIN      "]
    for at in range(0, len(bases), 60):
        blocks = [bases[i : i + 10] for i in range(at, min(at + 60, len(bases)), 10)]
        lines.append(f"{at + 1:>9} {' '.join(blocks)}")
    return "\n".join([*lines, "//", ""])


def record(name: str, bases: str, *features: str, length: int | None = None, version: bool = True) -> str:
    """A record; a feature is ``key location /qualifier=value ...``."""
    size = len(bases) if length is None else length
    lines = [
        f"LOCUS       {name:<16} {size:>11} bp    DNA     circular BCT 18-JAN-2017",
        "DEFINITION  made for a test.",
    ]
    if version:
        lines += [f"ACCESSION   {name}", f"VERSION     {name}.2"]
    lines.append("FEATURES             Location/Qualifiers")
    for feature in (f"source 1..{size}", *features):
        key, place, *qualifiers = feature.split(" ")
        lines.append(f"     {key:<16}{place}")
        lines += [f"                     {qualifier}" for qualifier in qualifiers]
    return "\n".join([*lines, ""]) + origin(bases)


def read(path, **options):
    """Contig names with bases, the lines of their headers, and the source."""
    source = Source(path)
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for piece in read_records(source, options=ReadOptions(**options)):
        assert piece.start == len(found.get(piece.contig, ""))
        assert not piece.lower.any()
        found[piece.contig] = found.get(piece.contig, "") + decode(piece.codes).decode()
        lines[piece.contig] = piece.line
    return found, lines, source


def write(tmp_path, text: str | bytes):
    path = tmp_path / "g.gbk"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(tmp_path, text: str | bytes) -> InputError:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.hint and str(path) in caught.value.message
    return caught.value


BASES = "".join(random.Random(0).choices("acgtn", k=211))


def test_real_record_base_by_base(tmp_path):
    found, lines, source = read(CHLAMYDIA)
    with gzip.open(CHLAMYDIA, "rt") as file:
        (expected,) = SeqIO.parse(file, "genbank")
    assert found == {"CG0037": str(expected.seq).upper()}
    assert lines == {"CG0037": 1}
    assert sum(feature.key == "CDS" for feature in source.features) == 895
    board = Board(tmp_path, found)
    signs = board.paint(features=source.features)["CG0037"]
    # by another hand: Biopython's own locations, base by base in reading direction
    order = "".join(SIGNS.values())
    regions = np.full(len(signs), order.index("-"))
    for feature in expected.features:
        if feature.type in ("tRNA", "rRNA", "misc_RNA", "gene"):
            for part in feature.location.parts:
                np.maximum.at(regions, np.arange(part.start, part.end), order.index("n"))
    for feature in expected.features:
        if feature.type == "CDS":
            for number, position in enumerate(feature.location):
                regions[position] = max(regions[position], order.index("123"[number % 3]))
    genes = {tuple(f.qualifiers.get("gene", ())) for f in expected.features if f.type == "gene"}
    others = {tuple(f.qualifiers.get("gene", ())) for f in expected.features if f.type != "gene"}
    assert genes <= others  # so every gene has its RNA, and none is painted for itself
    assert signs == "".join(order[number] for number in regions)
    ((_, fit),) = board.painted.fits
    assert (fit.coding, fit.starts, fit.stops) == (893, 1.0, 1.0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: bgzip(data, block=100)])
@pytest.mark.parametrize("size", [7, 64, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_two_records_in_any_wrapping(tmp_path, monkeypatch, pack, size, end):
    monkeypatch.setattr(source_module, "BLOCK", size)
    monkeypatch.setattr(source_module, "_RAW_BLOCK", max(size, 64))
    text = record("AB1", BASES, "CDS 1..9") + "\n" + record("AB2", BASES[::-1].upper(), "CDS 4..9")
    found, lines, source = read(write(tmp_path, pack(text.replace("\n", end).encode())))
    assert found == {"AB1.2": BASES.upper(), "AB2.2": BASES[::-1].upper()}
    assert lines == {"AB1.2": 1, "AB2.2": 15}
    assert [(f.contig, f.parts[0][:2]) for f in source.features] == [("AB1.2", (0, 9)), ("AB2.2", (3, 9))]


def test_standard_input(monkeypatch):
    data = gzip.compress(record("AB1", BASES).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read("-")[0] == {"AB1.2": BASES.upper()}


def test_names(tmp_path):
    assert list(read(write(tmp_path, record("AB1", "acgt", version=False)))[0]) == ["AB1"]
    text = record("AB1", "acgt").replace("VERSION     AB1.2\n", "")
    assert list(read(write(tmp_path, text))[0]) == ["AB1"]
    twice = record("AB1", "acgt") * 2
    error = refused(tmp_path, twice)
    assert "line 10: the name 'AB1.2' is used twice" in error.message
    assert list(read(write(tmp_path, twice), rename=True)[0]) == ["AB1.2", "AB1.2.2"]


def test_options_choose_records_and_stretches(tmp_path):
    path = write(tmp_path, record("AB1", BASES, "CDS 1..9") + record("AB2", BASES, "CDS 10..18"))
    found, _, source = read(path, skip=("AB1.2",))
    assert list(found) == ["AB2.2"] and [f.contig for f in source.features] == ["AB2.2"]
    found, _, source = read(path, regions=("AB2.2:11-30",))
    assert found == {"AB2.2:11-30": BASES[10:30].upper()}
    signs = Board(tmp_path, found).paint(features=source.features)
    assert signs == {"AB2.2:11-30": "23123123" + "-" * 12}


def test_every_letter_and_a_wrong_one(tmp_path):
    letters = "acgtnryswkmbdhvACGTNRYSWKMBDHV"
    assert read(write(tmp_path, record("AB1", letters)))[0] == {"AB1.2": letters.upper()}
    error = refused(tmp_path, record("AB1", "acgt" * 20 + "e"))
    assert "line 9 (contig AB1.2): column 33: 'E' is not a nucleotide" in error.message


@pytest.mark.parametrize("origin_line", ["ORIGIN      \n", ""])
def test_a_record_that_only_joins_others(tmp_path, origin_line):
    text = record("AB1", "", "CDS 1..9", length=100)
    text = text.replace("ORIGIN      \n", f"CONTIG      join(AC1.1:1..100)\n{origin_line}")
    error = refused(tmp_path, record("AB0", "acgt") + text)
    assert "line 10 (contig AB1" in error.message
    assert "the record has no bases, it only says of which others it is made" in error.message
    assert "GenBank (full)" in error.hint


@pytest.mark.parametrize("origin_line", ["ORIGIN      \n", ""])
def test_a_record_without_bases(tmp_path, origin_line):
    error = refused(tmp_path, record("AB1", "", length=100).replace("ORIGIN      \n", origin_line))
    assert error.message.endswith("the record has no bases")


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_length_that_is_not_that_of_the_locus_line(tmp_path, difference):
    error = refused(tmp_path, record("AB1", BASES, length=len(BASES) + difference))
    assert f"1 bases too {'few' if difference > 0 else 'many'}" in error.message


def test_a_file_that_is_cut_short_anywhere(tmp_path):
    text = record("AB1", BASES, 'CDS 1..9 /gene="x"')
    for cut in range(7, len(text) - 1):
        assert refused(tmp_path, text[:cut]).message
    assert "cut short" in refused(tmp_path, text[:-3]).message
    assert "has no end line" in refused(tmp_path, text.replace("//\n", "") + text).message
    assert "text outside of a record" in refused(tmp_path, text + "\nmore\n").message
    assert "line 16" in refused(tmp_path, text + "\nmore\n").message
    assert "outside of a record" in refused(tmp_path, text + "//\n").message


def test_what_biopython_cannot_read_is_an_input_error(tmp_path):
    good = record("AB1", BASES, 'CDS 1..9 /gene="x"')
    error = refused(tmp_path, good.replace("bp    DNA", "xx"))
    assert "line 1 (contig AB1): the record cannot be read" in error.message
    error = refused(tmp_path, good.replace("CDS             1..9", "CDS             1..x"))
    assert (
        "(contig AB1.2): a CDS whose place cannot be read" in error.message
        or "cannot be read" in error.message
    )
    error = refused(tmp_path, good.replace("CDS             1..9", "CDS             1..900"))
    assert "the CDS 1..900 leaves the record, which has 211 bases" in error.message
    error = refused(tmp_path, good.replace("bp    DNA    ", "aa           "))
    assert error.message


def painted(tmp_path, *features: str, size: int = 30) -> str:
    found, _, source = read(write(tmp_path, record("AB1", "a" * size, *features)))
    return Board(tmp_path, found).paint(features=source.features)["AB1.2"]


def test_classes_of_features(tmp_path):
    assert (
        painted(
            tmp_path,
            "gene 1..12 /gene=a",
            "mRNA join(1..6,10..12) /gene=a",
            "CDS join(4..6,10..11) /gene=a",
            "tRNA complement(14..15)",
            "gene 17..18 /locus_tag=p /pseudo",
            "CDS 20..21 /pseudo",
            "repeat_region 22..26",
            "LTR 24..25",
            "misc_feature 27..28",
            "exon 29..30",
        )
        == "uuu123iii12u-nn-nn-nnrrrrr--ee"
    )


def test_coding_locations(tmp_path):
    assert painted(tmp_path, "CDS complement(join(2..4,7..9))") == "-321ii321" + "-" * 21
    assert painted(tmp_path, "CDS join(complement(7..9),complement(2..4))") == "-321ii321" + "-" * 21
    assert painted(tmp_path, "CDS join(2..5,8..9) /codon_start=3") == "-2312ii31" + "-" * 21
    assert painted(tmp_path, "CDS complement(2..9) /codon_start=2") == "-13213213" + "-" * 21
    assert painted(tmp_path, "CDS order(1..3,5..7)") == "123i123" + "-" * 23
    # a frameshift reads two bases twice: the lower place wins
    assert painted(tmp_path, "CDS join(1..5,4..9)") == "123112312" + "-" * 21


def test_fuzzy_ends(tmp_path):
    assert painted(tmp_path, "CDS <1..>9") == "123123123" + "-" * 21
    assert painted(tmp_path, "CDS complement(<1..9) /codon_start=2") == "213213213" + "-" * 21
    assert painted(tmp_path, "tRNA (1.3)..5", "tRNA 10^11", "tRNA 12") == "nnnnn------n" + "-" * 18


def test_across_the_origin_and_between_strands(tmp_path):
    assert painted(tmp_path, "CDS join(28..30,1..3)") == "123" + "-" * 24 + "123"
    assert painted(tmp_path, "CDS complement(join(29..30,1..4))") == "1321" + "-" * 24 + "32"
    assert painted(tmp_path, "CDS join(complement(2..4),9..11)") == "-321----123" + "-" * 19
    assert painted(tmp_path, "CDS join(2..4,9..11) /trans_splicing") == "-123----123" + "-" * 19


def test_parts_in_other_records(tmp_path):
    text = record("AB1", "a" * 30, "CDS join(2..3,J00194.1:100..103,9..11)")
    found, _, source = read(write(tmp_path, text))
    signs = Board(tmp_path, found).paint(features=source.features)["AB1.2"]
    assert signs == "-12iiiii123" + "-" * 19
    assert any("other records: 1" in note for note in source.notes)


@given(st.integers(0, 2000), st.integers(0, 30), st.binary(max_size=6))
@settings(max_examples=300)
def test_fuzz(tmp_path_factory, place, removed, inserted):
    data = (record("AB1", BASES, 'CDS join(1..9,20..31) /gene="x"') + record("AB2", BASES)).encode()
    at = place % len(data)
    path = write(tmp_path_factory.mktemp("fuzz"), data[:at] + inserted + data[at + removed :])
    try:
        found, _, source = read(path)
    except GenoctxError as error:
        assert error.message and error.hint
        return
    assert all(len(bases) in (0, len(BASES)) for bases in found.values())
    assert all(0 <= part.start < part.end <= len(BASES) for f in source.features for part in f.parts)
