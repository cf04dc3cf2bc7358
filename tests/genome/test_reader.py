import gzip
import io
import sys

import numpy as np
import pytest
from genome_helpers import BGZF_END, bgzip, fasta, gzip_members, naive_fasta
from hypothesis import example, given
from hypothesis import strategies as st

from genoctx.errors import InputError
from genoctx.genome import source as source_module
from genoctx.genome.alphabet import decode
from genoctx.genome.reader import count_lines, read_records
from genoctx.genome.source import Source


def read(path) -> dict[str, str]:
    """Contig names and bases in their original case (U apart), through the reader."""
    records: dict[str, str] = {}
    for piece in read_records(path):
        assert piece.start == len(records.get(piece.contig, ""))
        assert len(piece.codes) == len(piece.lower)
        letters = np.frombuffer(decode(piece.codes), dtype=np.uint8) | (piece.lower * np.uint8(32))
        records[piece.contig] = records.get(piece.contig, "") + letters.tobytes().decode()
    return records


def refused(tmp_path, data: bytes, name: str = "g.fa") -> InputError:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.hint
    assert str(path) in caught.value.message
    return caught.value


@pytest.fixture(params=[7, 64, 1 << 20])
def block(request, monkeypatch):
    """Block sizes that put every construct across a border."""
    monkeypatch.setattr(source_module, "BLOCK", request.param)
    monkeypatch.setattr(source_module, "_RAW_BLOCK", request.param)


RECORDS = {"chr1": "ACGTNRYSWKMBDHV" * 20, "chr2": "acgtnryswkmbdhv" * 3, "x|y:3": "AcGtN"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("width", [1, 13, 70, 10_000])
def test_line_ends_and_widths(tmp_path, block, end, final, width):
    path = tmp_path / "g.fa"
    path.write_bytes(fasta(RECORDS, width, end, final))
    assert read(path) == RECORDS


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        lambda data: gzip_members(data, 2),
        lambda data: gzip_members(data, 50),
        lambda data: gzip.compress(data) + gzip.compress(b""),
        lambda data: gzip.compress(data) + bytes(512),
        lambda data: bgzip(data, block=100),
        lambda data: bgzip(data) + BGZF_END,
        lambda data: bgzip(data[:200]) + bgzip(data[200:]),
    ],
    ids=["gzip", "two", "fifty", "empty member", "padding", "bgzip", "two ends", "joined bgzip"],
)
@pytest.mark.parametrize("name", ["g.fa", "g.fa.gz", "g.zip"])
def test_compression_is_told_by_content(tmp_path, block, pack, name):
    path = tmp_path / name
    path.write_bytes(pack(fasta(RECORDS)))
    assert read(path) == RECORDS


def test_plain_text_named_gz(tmp_path):
    path = tmp_path / "g.fa.gz"
    path.write_bytes(fasta(RECORDS))
    assert read(path) == RECORDS


def test_formats_are_reported(tmp_path):
    text = fasta(RECORDS)
    for name, data in {"plain": text, "gzip": gzip.compress(text), "bgzip": bgzip(text)}.items():
        (tmp_path / name).write_bytes(data)
        source = Source(tmp_path / name)
        list(read_records(source))
        assert (source.format, source.bytes, source.name) == (name, len(data), name)


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(fasta(RECORDS)))))
    assert read("-") == RECORDS


def test_mixed_line_ends_blank_lines_and_blanks(tmp_path, block):
    path = tmp_path / "g.fa"
    path.write_bytes(b"\n\r\n  \n>a one\r\nACGT  \nAC\r\rGT\t\n\n\n>b\rAC GT AC\x0b\n\x0c\n\n>c\nA")
    assert read(path) == {"a": "ACGTACGT", "b": "ACGTAC", "c": "A"}


def test_name_is_the_first_word_even_after_a_blank(tmp_path):
    path = tmp_path / "g.fa"
    path.write_bytes(b">  seq1\tx >y\nA\n>seq2>3 4\nC\n")
    assert read(path) == {"seq1": "A", "seq2>3": "C"}


def test_names_in_latin1_and_utf8(tmp_path):
    path = tmp_path / "g.fa"
    path.write_bytes(b">caf\xe9 M\xfcller\nA\n" + ">größe\nC\n".encode())
    assert read(path) == {"café": "A", "größe": "C"}


def test_byte_order_mark_is_noted(tmp_path):
    path = tmp_path / "g.fa"
    path.write_bytes(b"\xef\xbb\xbf>a\nACGT\n")
    source = Source(path)
    assert sum(piece.codes.size for piece in read_records(source)) == 4
    assert "byte order mark" in source.notes[0]


def test_records_without_bases_are_seen(tmp_path, block):
    path = tmp_path / "g.fa"
    path.write_bytes(b">a\n>b\nAC\n>c\n\n>d")
    assert read(path) == {"a": "", "b": "AC", "c": "", "d": ""}


def test_uracils_are_counted(tmp_path):
    path = tmp_path / "g.fa"
    path.write_bytes(b">a\nACGUuT\n")
    pieces = list(read_records(path))
    assert sum(piece.uracils for piece in pieces) == 2
    assert decode(pieces[-1].codes) == b"ACGTTT"
    assert pieces[-1].lower.tolist() == [False, False, False, False, True, False]


@pytest.mark.parametrize("size", range(1, 12))
def test_header_lines_are_counted(tmp_path, monkeypatch, size):
    monkeypatch.setattr(source_module, "BLOCK", size)
    monkeypatch.setattr(source_module, "_RAW_BLOCK", size)
    path = tmp_path / "g.fa"
    path.write_bytes(b"\r\n>a\r\nAC\r\nGT\r\n\r\n>b\rA\r>c\nA\n")
    lines = {piece.contig: piece.line for piece in read_records(path)}
    assert lines == {"a": 2, "b": 6, "c": 8}


def test_progress_adds_up_to_the_file(tmp_path):
    path = tmp_path / "g.fa"
    path.write_bytes(bgzip(fasta(RECORDS)))
    steps: list[int] = []
    list(read_records(path, progress=steps.append))
    assert sum(steps) == path.stat().st_size


# what is refused, and how it is said


def test_illegal_byte_says_line_column_and_contig(tmp_path, block):
    error = refused(tmp_path, b">a\nACGT\n\n>bb x\nACGTACGTACGT\n ACG\tT!A\n")
    assert "line 6 (contig bb): column 7: '!' is not a nucleotide" in error.message


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_illegal_byte_is_placed_with_every_line_end(tmp_path, block, end):
    error = refused(tmp_path, end.join([b">a", b"ACGT" * 50, b"ACJT"]))
    assert "line 3 (contig a): column 3: 'J'" in error.message


@pytest.mark.parametrize(
    ("byte", "word"),
    [
        *(("-", "gaps"), (".", "gaps"), ("*", "protein"), ("L", "protein"), ("f", "protein")),
        *(("X", "write N"), ("7", "position numbers"), ("+", "FASTQ"), ("@", "FASTQ"), (";", "comment")),
        ("!", "nucleotide letters"),
    ],
)
def test_illegal_byte_comes_with_advice(tmp_path, byte, word):
    assert word in refused(tmp_path, f">a\nAC{byte}T\n".encode()).hint


@pytest.mark.parametrize("byte", [b"\x00", b"\x1a", b"\x80", b"\xa0", b"\xff"])
def test_unprintable_bytes_are_shown_as_hex(tmp_path, byte):
    assert f"byte 0x{byte.hex()}" in refused(tmp_path, b">a\nAC" + byte + b"T\n").message


def test_header_glued_to_the_last_line_of_another_file(tmp_path, block):
    error = refused(tmp_path, b">a\nACGT\nACG>b\nACGT\n")
    assert "line 3: '>' inside a sequence line, column 4" in error.message
    assert "line end is missing" in error.hint


def test_duplicate_name_gives_both_lines(tmp_path, block):
    error = refused(tmp_path, b">a 1\nAC\n>b\nA\n>a 2\nGT\n")
    assert "line 5: the name 'a' is used twice" in error.message
    assert "g.fa, line 1" in error.message


def test_names_that_differ_only_behind_the_first_word(tmp_path):
    assert "first word" in refused(tmp_path, b"> seq 0\nAC\n> seq 1\nGT\n").hint


@pytest.mark.parametrize("header", [b">", b">  ", b">\t"])
def test_empty_name(tmp_path, block, header):
    assert "line 3: a header without a name" in refused(tmp_path, b">a\nA\n" + header + b"\nACGT\n").message


@pytest.mark.parametrize(
    "name", [b"#1", b"a\x00b", b"a\x1bb", "a\u2028b".encode(), b"a\x85b", "a\u00a0b".encode()]
)
def test_names_that_would_break_a_bed_file(tmp_path, name):
    assert "cannot be a contig name" in refused(tmp_path, b">" + name + b"\nA\n").message


def test_sequence_before_the_first_header(tmp_path, block):
    error = refused(tmp_path, b"\n\n  ACGTACGT\n>a\nACGT\n")
    assert "line 3: text before the first '>': 'AC" in error.message


def test_endless_header(tmp_path):
    assert "longer than 1 MiB" in refused(tmp_path, b">" + b"a" * (1 << 21)).message


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "is empty"),
        (b"\n\n \r\n", "holds no sequence"),
        (gzip.compress(b""), "empty gzip member"),
        (b"@read1\nACGT\n+\nIIII\n", "FASTQ"),
        (b"@HD\tVN:1.6\n", "SAM"),
        (b"<!DOCTYPE html>\n<html>", "HTML"),
        (b"\n  <html>404", "HTML"),
        (b"\xef\xbb\xbf<html>404", "HTML"),
        (b"LOCUS       NC_1 4 bp DNA\n", "GenBank"),
        (gzip.compress(b"LOCUS       NC_1 4 bp DNA\n"), "GenBank"),
        (b"ID   X56734; SV 1;\n", "EMBL"),
        (b"\x43\x27\x41\x1a" + bytes(12), "2bit"),
        (b"\x1a\x41\x27\x43" + bytes(12), "2bit"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\x00\x00", "xz"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd"),
        (b"PK\x03\x04abc", "zip"),
        (gzip.compress(gzip.compress(b">a\nA\n")), "compressed twice"),
        (gzip.compress(b"BAM\x01abc"), "BAM"),
        (b"##gff-version 3\n", "GFF"),
        (b"##fileformat=VCFv4.2\n", "VCF"),
        (">a\nACGT\n".encode("utf-16"), "UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"just some words\n", "text before the first '>'"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path, data, word):
    error = refused(tmp_path, data)
    assert word in error.message


def test_the_way_out_is_quoted_for_the_shell(tmp_path):
    assert "'" in refused(tmp_path, b"BZh91", name="my genome.fa").hint


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.fa")
    with pytest.raises(InputError, match="directory"):
        read(tmp_path)


@given(cut=st.integers(1, 10_000), pack=st.sampled_from([gzip.compress, bgzip]))
@example(cut=28, pack=bgzip)  # exactly the end marker
@example(cut=1, pack=gzip.compress)
@example(cut=8, pack=gzip.compress)
def test_no_truncated_gzip_is_ever_read(tmp_path_factory, cut, pack):
    data = pack(fasta({"a": "ACGTTGCATTAGCCA" * 40}))
    path = tmp_path_factory.mktemp("cut") / "g.fa.gz"
    path.write_bytes(data[: max(2, len(data) - cut)])
    with pytest.raises(InputError, match="cut short"):
        read(path)


@pytest.mark.parametrize("lost", range(1, 40))
def test_the_last_of_several_members_is_cut_short(tmp_path, block, lost):
    assert "cut short" in refused(tmp_path, gzip_members(fasta(RECORDS), 3)[:-lost]).message


def test_damaged_gzip(tmp_path):
    data = bytearray(gzip.compress(fasta(RECORDS), mtime=0))
    data[len(data) // 2] ^= 0xFF
    assert "damaged gzip data" in refused(tmp_path, bytes(data)).message


def test_wrong_checksum(tmp_path):
    data = bytearray(gzip.compress(fasta(RECORDS)))
    data[-6] ^= 1
    assert "damaged gzip data" in refused(tmp_path, bytes(data)).message


def test_bytes_behind_the_gzip_data(tmp_path, block):
    assert "other bytes follow" in refused(tmp_path, gzip.compress(fasta(RECORDS)) + b">z\nACGT\n").message


def test_protein_file(tmp_path):
    error = refused(tmp_path, b">sp|P69905\nMVLSPADKTNVKAAWGKV\n")
    assert "column 3: 'L'" in error.message
    assert "protein" in error.hint


letters = st.text(alphabet="ACGTNRYSWKMBDHVacgtnryswkmbdhv", max_size=80)


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z0-9_.|:]{1,8}", fullmatch=True), letters, min_size=1, max_size=6),
    st.lists(st.sampled_from(["\n", "\r\n", "\r", "\n\n", " \n", "\t\r\n"]), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(1, 40),
)
def test_any_layout_reads_as_the_naive_reader_does(tmp_path_factory, records, ends, width, block_size):
    lines = []
    for name, bases in records.items():
        lines += [f">{name}", *(bases[i : i + width] for i in range(0, len(bases), width))]
    text = "".join(line + ends[i % len(ends)] for i, line in enumerate(lines)).encode()
    path = tmp_path_factory.mktemp("layout") / "g.fa"
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "BLOCK", block_size)
        patch.setattr(source_module, "_RAW_BLOCK", block_size)
        assert read(path) == naive_fasta(text) == records


@given(st.binary(max_size=300))
@example(b">")
@example(b">a")
@example(b"\r")
@example(b">a\r")
@example(b"\x1f\x8b")
def test_no_bytes_crash_the_reader(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("noise") / "g.fa"
    for text in (data, b">a\n" + data, gzip.compress(b">a\nAC\n") + data):
        path.write_bytes(text)
        try:
            read(path)
        except InputError as error:
            assert error.hint


@given(st.text(alphabet="a\r\n", max_size=30))
def test_lines_are_counted_once(text):
    assert count_lines(text.encode()) == text.replace("\r\n", "\n").replace("\r", "\n").count("\n")
