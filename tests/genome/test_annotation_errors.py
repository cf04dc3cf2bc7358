"""Files that are wrong, or not annotations at all: an error with file and line, or the right result."""

import gzip
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from region_helpers import Board, gff, gtf

from genoctx.errors import GenoctxError, InputError
from genoctx.genome import annotation_file
from genoctx.genome import source as source_module
from genoctx.genome.regions import CLASSES, REGIONS, annotate


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path, {"c": 30})


def refused(board, text, made: str = "") -> InputError:
    """The error, after which nothing has been painted."""
    with pytest.raises(InputError) as caught:
        board.paint(text, made=made)
    assert caught.value.hint
    assert str(board.folder) in caught.value.message
    assert not (board.folder / "store" / REGIONS).exists()
    return caught.value


def test_bed_counts_from_0_and_excludes_the_end(board):
    assert board.paint("c 0 1\nc 29 30\n", made="=repeat")["c"] == "r" + "." * 28 + "r"
    assert "the interval ends at 31, but c has 30 bases" in refused_later(board, "c 29 31\n")
    assert "line 2" in refused_later(board, "c 0 1\nc 30 31\n")


def refused_later(board, text) -> str:
    with pytest.raises(InputError) as caught:
        board.paint(text, made="=repeat")
    return caught.value.message


@pytest.mark.parametrize(
    "row",
    ["c 0 0", "c 5 5", "c 30 30", "c 6 5", "c -1 5", "c 1.5 3", "c x 3", "c 1 ²", "c 1", "c 1 999999999999"],
)
def test_bed_rows_that_are_no_intervals(board, row):
    error = refused(board, f"# top\ntrack name=x\nbrowser hide all\nc 0 1\n{row}\n", made="=repeat")
    assert "line 5" in error.message


def test_gff_counts_from_1_and_includes_the_end(board):
    assert board.paint(gff("CDS 1 1 + 0 ID=a", "CDS 30 30 + 0 ID=b"))["c"] == "1" + "-" * 28 + "1"


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ("CDS 0 3 + 0 ID=a", "start 0"),
        ("CDS 4 3 + 0 ID=a", "start 4 lies behind end 3"),
        ("CDS 29 31 + 0 ID=a", "ends at 31, but c has 30 bases"),
        ("CDS 31 31 + 0 ID=a", "ends at 31"),
        ("CDS -1 3 + 0 ID=a", "are no positions"),
        ("CDS 1 3e1 + 0 ID=a", "are no positions"),
        ("CDS 1 " + "9" * 5000 + " + 0 ID=a", "are no positions"),
        ("CDS 1 3 plus 0 ID=a", "strand 'plus'"),
        ("CDS 1 3 + 3 ID=a", "phase '3'"),
        ("CDS 1 3 . 0 ID=a", "a CDS without strand"),
        ("stop_codon 1 3 ? 0 ID=a", "a stop_codon without strand"),
        ("match 0 3 + . ID=a", "start 0"),
    ],
)
def test_gff_rows_that_are_wrong(board, row, match):
    error = refused(board, gff("CDS 1 3 + 0 ID=z", row))
    assert "line 3" in error.message and match in error.message


def test_gff_columns(board):
    good = gff("CDS 1 3 + 0 ID=a")
    assert "line 3: 7 columns instead of 9" in refused(board, good + "c\tx\tCDS\t1\t3\t.\t+\n").message
    assert "line 3: 1 columns" in refused(board, good + "c x CDS 1 3 . + 0 ID=a\n").message
    assert "separated by blanks" in refused(board, "c x CDS 1 3 . + 0 ID=a\n").message
    assert board.paint(good + "c\tx\tCDS\t5\t7\t.\t+\t0\n")["c"][:8] == "123-123-"


def test_gtf_without_identifiers(board):
    text = gtf("CDS 1 3 + 0 G T") + 'c\tx\tCDS\t5\t7\t.\t+\t0\tname "x";\n'
    assert "line 2: a CDS without transcript_id" in refused(board, text).message


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ("1\t9\tt\t0\t+\t1\t9\t0\t2\t3,3\t0", "2 blocks, but 2 sizes and 1 starts"),
        ("1\t9\tt\t0\t+\t1\t9\t0\t3\t3,3\t0,5", "3 blocks, but 2 sizes"),
        ("1\t9\tt\t0\t+\t1\t9\t0\t1\t9\t0", "block 1-10 is empty, overlaps another or leaves"),
        ("1\t9\tt\t0\t+\t1\t9\t0\t2\t4,4\t0,3", "block 4-8"),
        ("1\t9\tt\t0\t+\t1\t9\t0\t1\t0\t0", "block 1-1 is empty"),
        ("1\t9\tt\t0\t+\t0\t9\t0\t1\t8\t0", "coding part 0-9 leaves the interval"),
        ("1\t9\tt\t0\t+\t4\t3\t0\t1\t8\t0", "coding part 4-3"),
        ("1\t9\tt\t0\t.\t2\t5\t0\t1\t8\t0", "a coding part without strand"),
        ("1\t9\tt\t0\tx\t2\t5\t0\t1\t8\t0", "strand 'x'"),
        ("1\t9\tt\t0\t+\ta\t5\t0\t1\t8\t0", "hold no positions"),
        ("1\t9\tt\t0\t+\t1\t5\t0\t1\t\t0", "hold no positions"),
        ("1\t9\tt\t0\t+", "6 columns instead of 12"),
    ],
)
def test_bed12_rows_that_are_wrong(board, columns, match):
    error = refused(board, f"c\t1\t9\tt\t0\t+\t1\t9\t0\t1\t8\t0\nc\t{columns}\n")
    assert "line 2" in error.message and match in error.message


def test_intervals_without_a_class(board):
    error = refused(board, "c\t1\t5\tAluY\t0\t+\n")
    assert "nothing tells what these intervals are" in error.message
    assert "=CLASS" in error.hint and "repeat" in error.hint


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "empty gzip member"),
        (b"\n \n# only\n##gff-version 2\n", "holds no feature"),
        (b"##gff-version 3\n", "no feature that tells"),
        (b">c\nACGT\n", "looks like FASTA"),
        (b"\xef\xbb\xbf>c\nACGT\n", "looks like FASTA"),
        (b"LOCUS       X\n", "GenBank"),
        (b"\n<html>", "HTML"),
        (b"\xeb\xf2\x89\x87\x00\x04", "bigBed"),
        (b"SQLite format 3\x00", "database"),
        (b"BZh91AY", "bzip2"),
        (b"\xff\xfec\x00", "UTF-16"),
        (b"c\t1\t2\x00\n", "NUL"),
        (gzip.compress(gzip.compress(b"c 1 2\n")), "compressed twice"),
        (gzip.compress(b"c 1 2\n" * 99)[:-9], "cut short|damaged"),
        (b"GeneID\tChr\tStart\tEnd\tStrand\n", "neither GFF3, GTF nor BED"),
        (b"just words\n", "neither GFF3, GTF nor BED"),
    ],
)
def test_files_that_are_no_annotations(board, data, match):
    assert re.search(match, refused(board, data, made="=repeat").message)


def test_a_missing_file(board):
    with pytest.raises(InputError, match="cannot open"):
        board.paint_files(str(board.folder / "absent.gff"))


def test_text_oddities_that_are_read_over(tmp_path, monkeypatch):
    rows = [
        "##gff-version 3",
        "",
        "#!x",
        "###",
        "  ",
        "track x",
        "c\tx\tCDS\t1\t3\t.\t+\t0\tID=a",
        "é\tx\tCDS\t1\t3\t.\t+\t0\tID=a",
    ]
    board = Board(tmp_path, {"c": 5, "é": 4})
    for size in (1, 7, 1 << 20):
        monkeypatch.setattr(source_module, "BLOCK", size)
        monkeypatch.setattr(source_module, "_RAW_BLOCK", max(size, 64))
        for end in ("\n", "\r\n", "\r"):
            for codec in ("utf-8", "latin-1", "utf-8-sig"):
                text = end.join(rows).encode(codec)
                assert board.paint(text) == {"c": "123--", "é": "123-"}
                assert board.paint(gzip.compress(text)) == {"c": "123--", "é": "123-"}


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_ends_them(board, monkeypatch, size, end):
    monkeypatch.setattr(source_module, "BLOCK", size)
    monkeypatch.setattr(source_module, "_RAW_BLOCK", size)
    rows = [
        "##gff-version 3",
        "",
        "c\tx\tCDS\t1\t3\t.\t+\t0\tID=a",
        "",
        "",
        "c\tx\tCDS\t1\t39\t.\t+\t0\tID=b",
    ]
    assert "line 6: the CDS ends at 39" in refused(board, end.join(rows)).message


def test_one_line_in_latin1_leaves_the_others_alone(tmp_path):
    board = Board(tmp_path, {"é": 4})
    text = "é\tx\tCDS\t1\t3\t.\t+\t0\tID=a\n".encode() + "é\tx\tgene\t4\t4\t.\t+\t.\tID=ö\n".encode("latin-1")
    assert board.paint(text) == {"é": "123n"}


def test_sequences_at_the_end_of_a_gff_are_not_read(board):
    good = gff("CDS 1 3 + 0 ID=a")
    for tail in ("##FASTA\n>c\nACGT\n", ">c\nACGT\n", "##FASTA\n>c\n" + "A" * 100_000):
        assert board.paint(good + tail)["c"][:4] == "123-"
        assert board.painted.sources[0].bytes == len(good + tail)


def test_a_line_without_end(board, monkeypatch):
    monkeypatch.setattr(annotation_file, "_LONGEST", 1000)
    monkeypatch.setattr(source_module, "BLOCK", 512)
    assert "longer than" in refused(board, "c\t1\t2\trepeat\n" + "c" * 5000).message


WORDS = ["CDS", "exon", "gene", "ID=a", "Parent=a", "gene_id", "repeat", "\x00", "é", "##FASTA"]
LINES = ["c\tx\tCDS\t1\t9\t.\t+\t0\tID=a\n", "c\t1\t9\tUTR\n"]
ALPHABET = st.sampled_from([*'c0123456789+-.;="\t\t\t\n\n\r ,:>#%', *WORDS, *LINES])


def fuzzed(data: bytes, made: str) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        board = Board(folder, {"c": 30, "d": 5})
        path = board.write(data)
        try:
            painted = annotate(folder / "store", board.contigs, [path + made], ())
        except GenoctxError as error:
            assert error.message and error.hint
            assert not (folder / "store" / REGIONS).exists()
            return
        regions = np.fromfile(folder / "store" / REGIONS, dtype=np.uint8)
        assert regions.size == 35 and regions.max() < len(CLASSES)
        assert sum(sum(counts.values()) for counts in painted.counts) == 35
    finally:
        shutil.rmtree(folder)


@given(st.lists(ALPHABET, max_size=40), st.sampled_from(["", "=repeat", "=exon"]))
@settings(max_examples=400)
def test_fuzz_text(words, made):
    fuzzed("".join(words).encode(), made)


VALID = (
    gff(
        "gene 3 28 + . ID=g",
        "mRNA 3 28 + . ID=t;Parent=g",
        "exon 3 10 + . Parent=t",
        "exon 15 28 + . Parent=t",
        "CDS 6 10 + 0 ID=p;Parent=t",
    ),
    gtf("exon 3 10 - . G T", "CDS 3 10 - 0 G T", "stop_codon 1 2 - . G T"),
    "c\t2\t28\tt\t0\t+\t6\t19\t0\t3\t8,6,4,\t0,12,22\n" * 2,
    "c\t1\t5\trepeat\t0\t+\nd\t0\t3\tUTR\n",
)


@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=5
    ),
    st.sampled_from(["", "=repeat", "=exon"]),
    st.booleans(),
)
@settings(max_examples=400)
def test_fuzz_damaged_files(text, edits, made, packed):
    data = text.encode()
    if packed:
        data = gzip.compress(data, mtime=0)
    for place, removed, inserted in edits:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    fuzzed(data, made)
