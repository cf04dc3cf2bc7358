"""Damaged files: a clear error, or the right bases; never another exception, never a partial store."""

import gzip
import os
import random

import pytest
from genome_helpers import GENOMES, bgzip, gzip_members
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_helpers import Fault, blocks_of, line_of, naive_read, read

from genoctx.errors import GenoctxError, InputError
from genoctx.genome.formats import refuse_other_formats
from genoctx.genome.store import GenomeStore, ingest

LAMBDA = (GENOMES / "lambda_phage.fa.gz").read_bytes()
TEXT = gzip.decompress(LAMBDA)[:2_000] + b"\n" + gzip.decompress(
    (GENOMES / "yeast_r64_chrI.fna.gz").read_bytes()
)[:1_500]  # fmt: skip
STRANGE = [b">", b"\n", b"\r", b"\r\n", b" ", b"*", b"-", b".", b"\0", b"N", b"n", b"U", b"J", b"7", b"@",
           b"\n>", b">a\n", b"\n>a", b"\n>\n", b"*\n>b\n", b"\n\n", b"\xef\xbb\xbf", b"\xff", b"\x1f\x8b"]  # fmt: skip

fuzzed = settings(max_examples=300, derandomize="CI" in os.environ)
sizes = st.one_of(st.integers(1, 300), st.just(1 << 20))
edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 30), st.sampled_from(STRANGE)), min_size=1, max_size=4
)


def edited(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """``data`` with bytes replaced: where (as a share of its length), how many, by what."""
    for share, length, new in changes:
        at = int(share * len(data))
        data = data[:at] + new + data[at + length :]
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def outcome(path, size, **options) -> dict[str, str] | InputError:
    with blocks_of(size):
        try:
            return read(path, **options)
        except InputError as error:
            assert error.hint
            assert str(path) in error.message
            return error


@fuzzed
@given(edits, sizes, st.sampled_from(["error", "drop", "n"]))
def test_edited_text_reads_right_or_names_the_first_wrong_line(folder, changes, size, gaps):
    data = edited(TEXT, changes)
    path = folder / "g.fa"
    path.write_bytes(data)
    found = outcome(path, size, gaps=gaps)
    if data.startswith(b"\x1f\x8b"):
        assert isinstance(found, InputError)
        return
    try:
        refuse_other_formats(data, str(path))
        expected = naive_read(data, gaps)[0]
    except Fault as fault:
        assert isinstance(found, InputError)
        assert line_of(found, path) == fault.line
    except InputError as error:
        assert str(found) == str(error)
    else:
        assert found == expected


@st.composite
def damages(draw) -> tuple[bytes, str]:
    """A compressed file with flipped, lost, doubled or foreign bytes."""
    data = draw(st.sampled_from([LAMBDA, gzip.compress(TEXT), gzip_members(TEXT, 5), bgzip(TEXT, block=700)]))
    kind = draw(st.sampled_from(["flip", "flip", "cut", "lose", "double", "swap"]))
    at, other = sorted(draw(st.lists(st.integers(0, len(data) - 1), min_size=2, max_size=2)))
    if kind == "flip":
        changed = bytearray(data)
        # headers and trailers are few bytes among many: aim at them every other time
        at = draw(st.sampled_from([at, at % 28, len(data) - 1 - at % 40]))
        changed[at] ^= 1 << draw(st.integers(0, 7))
        return bytes(changed), kind
    if kind == "cut":
        return data[:at], kind
    if kind == "lose":
        return data[:at] + data[other:], kind
    if kind == "double":
        return data[:other] + data[at:], kind
    return data[:at] + random.Random(other).randbytes(other - at) + data[other:], kind


@fuzzed
@given(damages(), sizes)
def test_damaged_gzip_reads_right_or_is_refused(folder, damage, size):
    data, _ = damage
    path = folder / "g.fa.gz"
    path.write_bytes(data)
    found = outcome(path, max(size, 20))
    if isinstance(found, InputError):
        return
    # what was read is what gzip itself makes of the file, whole
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    assert found == naive_read(text)[0]


def test_every_bit_of_a_small_gzip_file(folder):
    """A flip is harmless (time stamp, system) or refused, and never changes a base."""
    whole = gzip.compress(b">a\nACGTACGT\n", mtime=1)
    path = folder / "bits.gz"
    harmless = set()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        found = outcome(path, 1 << 20)
        if not isinstance(found, InputError):
            assert found == {"a": "ACGTACGT"}
            harmless.add(bit // 8)
    assert {4, 5, 6, 7, 9} <= harmless  # the time, and the system it was made on


@settings(max_examples=100, derandomize="CI" in os.environ)
@given(st.one_of(edits.map(lambda changes: edited(TEXT, changes)), damages().map(lambda pair: pair[0])))
def test_a_store_is_whole_or_not_there(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("store")
    (folder / "g.fa").write_bytes(data)
    try:
        store = ingest(folder / "g.fa", folder / "out")
    except GenoctxError:
        assert os.listdir(folder) == ["g.fa"]
    else:
        assert sorted(os.listdir(folder)) == ["g.fa", "out"]
        assert GenomeStore.open(folder / "out").digest == store.digest
        lengths = {contig.name: contig.length for contig in store.contigs}
        assert lengths == {name: len(bases) for name, bases in read(folder / "g.fa").items() if bases}
