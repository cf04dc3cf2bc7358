import gzip
import io
import sys

import pytest
from genome_helpers import BGZF_END, bgzip, fasta, gzip_members
from hypothesis import example, given
from hypothesis import strategies as st
from reader_helpers import blocks_of, read, refused

from genoctx.errors import InputError
from genoctx.genome.reader import count_lines, read_records
from genoctx.genome.source import Source


@pytest.fixture(params=[7, 64, 1 << 20])
def block(request):
    """Block sizes that put every construct across a border."""
    with blocks_of(request.param):
        yield


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


@pytest.mark.parametrize("size", range(1, 12))
def test_header_lines_are_counted(tmp_path, size):
    path = tmp_path / "g.fa"
    path.write_bytes(b"\r\n>a\r\nAC\r\nGT\r\n\r\n>b\rA\r>c\nA\n")
    with blocks_of(size):
        lines = {piece.contig: piece.line for piece in read_records(path)}
    assert lines == {"a": 2, "b": 6, "c": 8}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: bgzip(data, block=500)])
def test_blocks_stay_small_however_the_text_is_packed(tmp_path, pack):
    (tmp_path / "g.fa").write_bytes(pack(fasta({"a": "ACGT" * 50_000})))
    with blocks_of(4_096):
        sizes = [len(block) for block in Source(tmp_path / "g.fa").blocks()]
    assert sum(sizes) > 200_000
    assert max(sizes) < 2 * 4_096
    # and not too small: numpy takes its time for every block
    assert min(sizes[:-1]) >= 4_096 // 2


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


@pytest.mark.parametrize("data", [b"\x43\x27\x41\x1a" + bytes(12), b"\x1a\x41\x27\x43" + bytes(12)])
def test_2bit_of_either_byte_order_comes_with_its_converter(tmp_path, data):
    path = tmp_path / "g.fa"
    assert refused(tmp_path, data).hint == f"twoBitToFa {path} stdout | genoctx ingest - -o STORE"


def test_text_before_the_first_header_is_shown(tmp_path):
    error = refused(tmp_path, b"\n \n a b" + b"c" * 50 + b"\n>a\nACGT\n")
    assert error.message.endswith(f"line 3: text before the first '>': 'a b{'c' * 37}'")


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


@pytest.mark.parametrize("size", range(2, 60))
def test_a_bgzip_file_without_its_end_is_cut_short_wherever_block_borders_fall(tmp_path, size):
    with blocks_of(size):
        assert "end marker" in refused(tmp_path, bgzip(fasta({"a": "ACGT"}), block=9, end=False)).message


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
