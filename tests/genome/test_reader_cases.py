"""Every case of sequence files that broke another tool; the number is its row in our collection of them."""

import gzip
import os
import stat
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
from genome_helpers import GENOMES, bgzip, gzip_members, naive_fasta
from reader_helpers import blocks_of, read, read_noted, refused

from genoctx.errors import InputError
from genoctx.genome.alphabet import decode, encode, reverse_complement
from genoctx.genome.cut import Cutter
from genoctx.genome.lines import advance
from genoctx.genome.reader import read_records
from genoctx.genome.records import Records
from genoctx.genome.select import ReadOptions, Selection, Stretch, parse_region
from genoctx.genome.source import Source
from genoctx.genome.store import ingest

S = "ACGTACGTAC"
IUPAC = "RYKMSWBDHVN"


class Good(NamedTuple):
    row: int
    what: str
    data: bytes
    records: dict[str, str]
    notes: tuple[str, ...] = ()
    options: Mapping[str, object] = MappingProxyType({})


class Bad(NamedTuple):
    row: int
    what: str
    data: bytes
    message: str
    """Behind the file's path."""
    hint: str
    options: Mapping[str, object] = MappingProxyType({})


def fa(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode("latin-1")


GOOD = [
    Good(1, "empty line inside a record", fa(">a", S, "", S), {"a": S + S}),
    Good(1, "two empty lines before a header", fa(">a", S, "", "", ">b", S), {"a": S, "b": S}),
    Good(1, "empty lines everywhere", b"\n\r\n\n>a\n\n\r\rACGT\n\n\n", {"a": "ACGT"}),
    Good(2, "ragged lines", fa(">a", S, S[:4], S), {"a": S + S[:4] + S}),
    Good(2, "one base a line", fa(">a", *S), {"a": S}),
    Good(3, "CR only", f">a x\r{S}\r{S}\r>b\r{S}\r".encode(), {"a": S + S, "b": S}),
    Good(3, "CR only, none at the end", f">a\r{S}\r{S}".encode(), {"a": S + S}),
    Good(4, "one CRLF among LF", f">a\n{S}\n{S}\r\n{S}\n".encode(), {"a": S * 3}),
    Good(4, "CRLF, CR and LF", f">a\r\n{S}\r{S}\n\r{S}\n>b\r{S}".encode(), {"a": S * 3, "b": S}),
    Good(
        5,
        "duplicate names, renamed",
        fa(">a", S, ">a", S + S),
        {"a": S, "a.2": S + S},
        ("1 records whose name was taken were renamed: 'a' in line 3 is 'a.2'",),
        {"rename": True},
    ),
    Good(6, "a blank before the name", fa("> seq0 x", S, ">\tseq1", S), {"seq0": S, "seq1": S}),
    Good(8, "record without bases", fa(">a", ">b", S, ">c", "", ">d"), {"a": "", "b": S, "c": "", "d": ""}),
    Good(
        11,
        "byte order mark",
        b"\xef\xbb\xbf" + fa(">a", S),
        {"a": S},
        ("a UTF-8 byte order mark was skipped",),
    ),
    Good(12, "Latin-1 in the description", fa(">a M\xfcller \xa0\xff", S), {"a": S}),
    Good(12, "Latin-1 in the name", fa(">caf\xe9", S), {"café": S}),
    Good(12, "UTF-8 in the name", ">größe\n".encode() + S.encode(), {"größe": S}),
    Good(
        13,
        "a blank at every line end",
        fa(">a", S + " ", S + " ", S + " "),
        {"a": S * 3},
        ("3 blanks inside sequence lines were dropped",),
    ),
    Good(
        13,
        "blocks of five",
        fa(">a", "ACGTA CGTAC", "\tACGTA  CGTAC", "ACG"),
        {"a": S + S + "ACG"},
        ("4 blanks inside sequence lines were dropped",),
    ),
    Good(
        13,
        "every kind of blank, CRLF, and an indented header",
        b"  >a b c\r\n AC\x0bGT\x0c\r\n  \r\n\t>b\r\nA\r\n",
        {"a": "ACGT", "b": "A"},
        ("6 blanks inside sequence lines were dropped",),
    ),
    Good(13, "no blanks, no note", fa(">a b", S, "", ">c", S), {"a": S, "c": S}),
    Good(22, "soft-masked", fa(">a", "ACgtnNACgt"), {"a": "ACgtnNACgt"}),
    Good(22, "all lower case", fa(">a", S.lower()), {"a": S.lower()}),
    Good(25, "IUPAC in both cases", fa(">a", IUPAC, IUPAC.lower()), {"a": IUPAC + IUPAC.lower()}),
    Good(27, "gaps dropped", fa(">a", "-AC.G", "~~T-"), {"a": "ACGT"}, ("5 gap characters were dropped",),
         {"gaps": "drop"}),
    Good(27, "gaps as N", fa(">a", "-AC.g", "~~T-"), {"a": "NACNgNNTN"}, ("5 gap characters were read as N",),
         {"gaps": "n"}),
    Good(27, "nothing but gaps", fa(">a", "---", ">b", S), {"a": "", "b": S}, ("3 gap characters were dropped",),
         {"gaps": "drop"}),
    Good(
        27,
        "a star at the end of records",
        fa(">a", S, S + "*", ">b", "*", "", ">c", S, "*"),
        {"a": S + S, "b": "", "c": S},
        ("3 '*' at the end of a record were dropped",),
    ),
    Good(
        27,
        "a star before dropped gaps",
        fa(">a", S + "*-", "--"),
        {"a": S},
        ("3 gap characters were dropped", "1 '*' at the end of a record were dropped"),
        {"gaps": "drop"},
    ),
    Good(28, "U in both cases", fa(">a", "ACGUuT"), {"a": "ACGTtT"}),
    Good(29, "'>' inside a description", fa(">a x>y >z", S, ">b>c", S), {"a": S, "b>c": S}),
]  # fmt: skip

BAD = [
    Bad(5, "duplicate names", fa(">a", S, ">a", S + S), ", line 3: the name 'a' is used twice, first in {path}, line 1",
        "--rename"),
    Bad(6, "a blank before the name", fa("> seq 0", S, "> seq 1", S), ", line 3: the name 'seq' is used twice",
        "first word"),
    Bad(7, "header without a name", fa(">a", S, ">", S), ", line 3: a header without a name", "write a name"),
    Bad(7, "header of blanks", fa(">a", S, "> \t", S), ", line 3: a header without a name", "write a name"),
    Bad(10, "no header", fa("", " ", S), ", line 3: text before the first '>': 'A", ">name"),
    Bad(10, "words", fa("just some words"), ", line 1: text before the first '>': 'j", ">name"),
    Bad(10, "HTML", fa("<!DOCTYPE html>", "<html>404"), " is not FASTA: it looks like an HTML or XML page", "fetch"),
    Bad(10, "HTML behind a BOM", b"\xef\xbb\xbf \n<html>", " is not FASTA: it looks like an HTML", "fetch"),
    Bad(10, "FASTQ", fa("@r1", S, "+", "IIIIIIIIII"), " is not FASTA: it looks like FASTQ", "assembled genome"),
    Bad(10, "zero bytes", b"", " is empty", "FASTA"),
    Bad(10, "line ends only", b"\n\r\n\r", " holds no sequence", ">name"),
    Bad(11, "byte order mark, then nothing", b"\xef\xbb\xbf", " holds no sequence", ">name"),
    Bad(11, "byte order mark of a joined file", fa(">a", S) + b"\xef\xbb\xbf>b\nA\n",
        ", line 3 (contig a): column 1: byte 0xef is not a nucleotide", "joined"),
    Bad(11, "unprintable name", b">a\x1bb\nACGT\n", ", line 1: 'a\\x1bb' cannot be a contig name", "printable"),
    Bad(27, "gap", fa(">a", S, "AC-GT"), ", line 3 (contig a): column 3: '-' is not a nucleotide", "--gaps"),
    Bad(27, "dot", fa(">a", S, "ACG.T"), ", line 3 (contig a): column 4: '.' is not a nucleotide", "--gaps"),
    Bad(27, "star in the middle", fa(">a", "AC*GT", S), ", line 2 (contig a): column 3: '*' is not a nucleotide",
        "last '*'"),
    Bad(27, "star, then more lines", fa(">a", S, S + "*", "", S, ">b", S),
        ", line 3 (contig a): column 11: '*' is not a nucleotide", "last '*'"),
    Bad(27, "two stars", fa(">a", S + "**"), ", line 2 (contig a): column 11: '*' is not a nucleotide", "last '*'"),
    Bad(27, "star, then gaps that are N", fa(">a", S + "*", "--"), ", line 2 (contig a): column 11: '*'", "last '*'",
        {"gaps": "n"}),
    Bad(27, "wrong byte beside allowed gaps", fa(">a", "A-C- J-"), ", line 2 (contig a): column 6: 'J'", "protein",
        {"gaps": "drop"}),
    Bad(29, "two files joined without a line end", f">a\n{S}\n{S}>b\n{S}\n".encode(),
        ", line 3: '>' inside a sequence line, column 11", "line end is missing"),
    Bad(29, "'>' behind bases and a blank", fa(">a", S, "AC >b", S),
        ", line 3: '>' inside a sequence line, column 4", "line end is missing"),
    Bad(30, "protein", fa(">sp|P69905", "MVLSPADKTNVKAAWGKV"), ", line 2 (contig sp|P69905): column 3: 'L'", "protein"),
    Bad(30, "protein in lower case", fa(">p", "mvlsp"), ", line 2 (contig p): column 3: 'l'", "protein"),
    Bad(30, "NUL byte", b">a\nACGT\nAC\0T\n", ", line 3 (contig a): column 3: byte 0x00 is not a", "damaged"),
    Bad(30, "digits", fa(">a", S, "1 ACGT"), ", line 3 (contig a): column 1: '1'", "position numbers"),
    Bad(30, "X for unknown", fa(">a", "ACXXX"), ", line 2 (contig a): column 3: 'X'", "write N"),
    Bad(30, "the first of two faults", fa(">a", "AC!T", ">a", "J"), ", line 2 (contig a): column 3: '!'", "letters"),
]  # fmt: skip

SIZES = [1, 2, 3, 5, 8, 1 << 20]


def ids(case: Good | Bad) -> str:
    return f"row {case.row}: {case.what}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", GOOD, ids=ids)
def test_reads(tmp_path, case, size):
    (tmp_path / "g.fa").write_bytes(case.data)
    with blocks_of(size):
        assert read_noted(tmp_path / "g.fa", **case.options) == (case.records, list(case.notes))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", BAD, ids=ids)
def test_refuses(tmp_path, case, size):
    with blocks_of(size):
        error = refused(tmp_path, case.data, **case.options)
    path = str(tmp_path / "g.fa")
    assert error.message.startswith(path + case.message.format(path=path))
    assert case.hint in error.hint


@pytest.mark.parametrize("case", [case for case in BAD if case.data], ids=ids)
def test_refuses_the_same_text_in_gzip(tmp_path, case):
    error = refused(tmp_path, gzip_members(case.data, 3), **case.options)
    assert case.message.format(path=tmp_path / "g.fa") in error.message


def test_row_8_empty_records_are_skipped_with_a_warning_and_an_error_if_nothing_is_left(tmp_path):
    (tmp_path / "g.fa").write_bytes(fa(">a", ">b", S, ">c"))
    store = ingest(tmp_path / "g.fa", tmp_path / "store")
    assert [(contig.name, contig.length) for contig in store.contigs] == [("b", 10)]
    assert any("a, c" in warning for warning in store.warnings)
    (tmp_path / "g.fa").write_bytes(fa(">a", ">b"))
    with pytest.raises(InputError, match="no sequence has any bases"):
        ingest(tmp_path / "g.fa", tmp_path / "none")
    assert sorted(os.listdir(tmp_path)) == ["g.fa", "store"]


PACKED = {
    "gzip": gzip.compress,
    "two members joined": lambda data: gzip.compress(data[:25]) + gzip.compress(data[25:]),
    "bgzip": bgzip,
    "two bgzip files joined": lambda data: bgzip(data[:25]) + bgzip(data[25:]),
    "plain": bytes,
}


@pytest.mark.parametrize("name", ["g.fa", "g.fa.gz", "g.bgz", "g"])
@pytest.mark.parametrize("pack", PACKED)
def test_row_14_content_tells_the_compression_and_not_the_name(tmp_path, pack, name):
    (tmp_path / name).write_bytes(PACKED[pack](fa(">a", S, S, ">b", S)))
    assert read(tmp_path / name) == {"a": S + S, "b": S}


@pytest.mark.parametrize("pack", PACKED)
def test_row_19_a_folder_without_write_permission(tmp_path, pack):
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "g.fa").write_bytes(PACKED[pack](fa(">a", S)))
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    before = folder.stat().st_mtime_ns
    try:
        assert read(folder / "g.fa") == {"a": S}
        ingest(folder / "g.fa", tmp_path / "store")
        # permissions do not bind root, so look for what may not be there, too
        assert os.listdir(folder) == ["g.fa"]
        assert folder.stat().st_mtime_ns == before
    finally:
        folder.chmod(stat.S_IRWXU)


BEYOND = (1 << 31) + 5


def test_row_21_a_record_longer_than_an_int32(tmp_path):
    """Positions, columns, stretches and offsets past 2^31 and 2^32, without a file of that size."""
    cutter = Cutter([Stretch(BEYOND + 2, BEYOND + 6, "a:x")], 1)
    packed = encode(S.encode())
    pieces = [*cutter.feed(BEYOND - 10, packed), *cutter.feed(BEYOND, packed)]
    assert [(piece.start, decode(piece.codes)) for piece in pieces] == [(0, b""), (0, b"GTAC")]
    assert cutter.incomplete() is None
    assert advance(b"ACGT", 7, 1 << 32) == (7, (1 << 32) + 4)
    assert parse_region(f"a:{BEYOND + 1:,}-{BEYOND * 4}") == ("a", BEYOND, BEYOND * 4)


def test_row_21_pieces_go_on_past_an_int32(tmp_path):
    records = Records(Source("g.fa"), {}, ReadOptions(), Selection(ReadOptions()))
    records.begin(b"a", 1)
    records.take()
    assert records._taken is not None
    records._taken.bases = BEYOND
    records.add(S.encode(), 2, 1 << 32)
    (piece,) = records.take()
    assert piece.start == BEYOND
    assert records._taken.bases == BEYOND + 10
    records.add(b"AC!", 2, 1 << 32)
    with pytest.raises(InputError, match=f"column {(1 << 32) + 3}: '!'"):
        records.take()


def test_row_22_lower_case_is_the_same_base():
    lower = naive_fasta(gzip.decompress((GENOMES / "yeast_r64_chrI.fna.gz").read_bytes()))["NC_001133.9"]
    pieces = list(read_records(GENOMES / "yeast_r64_chrI.fna.gz"))
    codes = np.concatenate([piece.codes for piece in pieces])
    mask = np.concatenate([piece.lower for piece in pieces])
    assert np.array_equal(codes, encode(lower.upper().encode()))
    assert [bool(bit) for bit in mask] == [letter.islower() for letter in lower]
    assert round(mask.mean(), 3) == 0.129


def test_row_22_all_lower_case_is_warned_about(tmp_path):
    (tmp_path / "g.fa").write_bytes(fa(">a", S.lower() * 10))
    (warning,) = ingest(tmp_path / "g.fa", tmp_path / "store").warnings
    assert "100.0 % of the bases are lower case" in warning


def test_row_23_two_masks_of_one_genome(tmp_path):
    (tmp_path / "x.fa").write_bytes(fa(">a", "ACGTacgtAC"))
    (tmp_path / "y.fa").write_bytes(fa(">a", "acgtacgtaC"))
    x, y = (ingest(tmp_path / f"{name}.fa", tmp_path / name) for name in "xy")
    assert x.digest == y.digest
    assert x.manifest.softmask_sha256 != y.manifest.softmask_sha256
    assert [store.contigs[0].softmask_fraction for store in (x, y)] == [0.4, 0.9]


def test_row_25_the_complement_of_every_letter():
    assert decode(reverse_complement(encode(IUPAC.encode())[::-1])) == b"YRMKSWVHDBN"


def test_row_26_s_and_w_are_their_own_complements():
    assert decode(reverse_complement(encode(b"SW"))) == b"WS"


def test_row_28_u_is_counted(tmp_path):
    (tmp_path / "g.fa").write_bytes(fa(">a", "ACGUuT", ">b", "ACGT", ">c", "UUU"))
    store = ingest(tmp_path / "g.fa", tmp_path / "store")
    assert [contig.uracil_count for contig in store.contigs] == [2, 0, 3]
    assert "5 U were read as T" in store.warnings
