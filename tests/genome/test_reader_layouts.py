"""Any way of writing a genome down reads as the same bases: generated files against a slow second reader,
real files against Biopython."""

import gzip
from itertools import pairwise

import numpy as np
import pytest
from Bio import SeqIO
from genome_helpers import GENOMES, bgzip, gzip_members
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reader_helpers import BOM, blocks_of, naive_read, read, read_noted

from genoctx.genome.alphabet import decode
from genoctx.genome.reader import read_records

NAME = st.from_regex(r"[A-Za-z0-9_.|:*-]{1,8}", fullmatch=True)
DESCRIPTION = st.text(alphabet="aé >\t;#\x0b", max_size=8).map(lambda text: " " + text if text else "")
LINE = st.text(alphabet="ACGTNRYSWKMBDHVacgtnryswkmbdhvUu \t\v\f", max_size=40)
END = st.sampled_from([b"\n", b"\r\n", b"\r"])
BLANK_LINES = st.lists(st.sampled_from(["", "", " ", "\t \f"]), max_size=2)


@st.composite
def layouts(draw) -> bytes:
    """FASTA text with whatever a well-formed file may contain."""
    lines = draw(BLANK_LINES)
    for name in draw(st.lists(NAME, min_size=1, max_size=4, unique=True)):
        lines.append(draw(st.sampled_from([">", "> ", " >"])) + name + draw(DESCRIPTION))
        for line in draw(st.lists(LINE, max_size=5)):
            lines += [line, *draw(BLANK_LINES)]
        if draw(st.booleans()):
            lines[-1] += "*" if ">" not in lines[-1] else ""
    ends = draw(st.lists(END, min_size=1, max_size=5))
    coded = [line.encode(draw(st.sampled_from(["latin-1", "utf-8"]))) for line in lines]
    text = b"".join(line + ends[i % len(ends)] for i, line in enumerate(coded))
    if draw(st.booleans()):
        text = text[: -len(ends[(len(coded) - 1) % len(ends)])]
    return draw(st.sampled_from([b"", BOM])) + text


@st.composite
def packings(draw):
    """A way to store text in a file."""
    cuts = draw(st.lists(st.integers(0, 200), max_size=4).map(sorted))
    borders = list(pairwise([0, *cuts, None]))
    block = draw(st.integers(1, 70))
    return draw(
        st.sampled_from(
            [
                lambda data: data,
                gzip.compress,
                lambda data: b"".join(gzip.compress(data[first:last]) for first, last in borders),
                lambda data: b"".join(bgzip(data[first:last], block) for first, last in borders),
                lambda data: gzip.compress(data) + bytes(7),
            ]
        )
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts") / "g"


@settings(max_examples=300)
@given(layouts(), packings(), st.one_of(st.integers(2, 40), st.just(1 << 20)))
@example(b">a\rA\r", bytes, 5)
@example(b"\xef\xbb\xbf>a\r\n\r\nA C\n", bytes, 1)
@example(b">a\nAC*\n", gzip.compress, 5)
def test_every_layout(path, text, pack, size):
    path.write_bytes(pack(text))
    records, blanks = naive_read(text)
    with blocks_of(size):
        found, notes = read_noted(path)
    assert found == records
    counted = [note for note in notes if "blanks" in note]
    assert counted == ([f"{blanks:,} blanks inside sequence lines were dropped"] if blanks else [])
    assert ("a UTF-8 byte order mark was skipped" in notes) == text.startswith(BOM)


@given(layouts(), st.data())
def test_two_files_joined_read_as_two_files(path, text, data):
    """``cat`` of files is a file, as long as the first ends its last line and no name is used twice."""
    again = text.removeprefix(BOM).replace(b"> ", b">").replace(b">", b">/")
    text = text.removeprefix(BOM)
    records = naive_read(text)[0] | naive_read(again)[0]
    path.write_bytes(gzip_members(text + b"\n" + again, data.draw(st.integers(1, 4))))
    with blocks_of(data.draw(st.integers(2, 30))):
        assert read(path) == records


REAL = sorted(file.name for file in GENOMES.glob("*.f*a.gz"))


@pytest.mark.parametrize("name", REAL)
def test_real_genomes_read_as_biopython_reads_them(name):
    with gzip.open(GENOMES / name, "rt") as file:
        expected = {record.id: str(record.seq) for record in SeqIO.parse(file, "fasta")}
    parts: dict[str, list[bytes]] = {}
    for piece in read_records(GENOMES / name):
        letters = np.frombuffer(decode(piece.codes), dtype=np.uint8) | (piece.lower * np.uint8(32))
        parts.setdefault(piece.contig, []).append(letters.tobytes())
    assert {contig: b"".join(letters).decode() for contig, letters in parts.items()} == expected


def test_there_are_real_genomes():
    assert len(REAL) >= 6
