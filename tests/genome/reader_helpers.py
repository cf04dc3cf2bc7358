"""What the tests of the reader share: reading into plain text, and a second reader, slow and obvious."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from genoctx.errors import InputError
from genoctx.genome import source as source_module
from genoctx.genome.alphabet import decode
from genoctx.genome.reader import ReadOptions, read_records
from genoctx.genome.source import Source

BOM = b"\xef\xbb\xbf"
LETTERS = "ACGTNRYSWKMBDHV"
GENOME = {"chr1": "ACGTN" * 8, "chr2": "ggatcc" * 9, "chrM": "UUAcg", "HLA*01:01": "ACGTACGTTTAA"}
"""A genome to choose from; its U are read as T."""

_BLANKS = " \t\v\f"


def read(path: str | Path | Source, **options: object) -> dict[str, str]:
    """Contig names and bases in their original case (U apart), through the reader."""
    records: dict[str, str] = {}
    for piece in read_records(path, options=ReadOptions(**options)):
        assert piece.start == len(records.get(piece.contig, ""))
        assert len(piece.codes) == len(piece.lower)
        letters = np.frombuffer(decode(piece.codes), dtype=np.uint8) | (piece.lower * np.uint8(32))
        records[piece.contig] = records.get(piece.contig, "") + letters.tobytes().decode()
    return records


def read_noted(path: str | Path, **options: object) -> tuple[dict[str, str], list[str]]:
    """The same, and the notes without the path in front of them."""
    source = Source(path)
    records = read(source, **options)
    return records, [note.removeprefix(f"{path}: ") for note in source.notes]


def refused(folder: Path, data: bytes, name: str = "g.fa", **options: object) -> InputError:
    """The error that reading ``data`` raises; it names the file and what to do."""
    path = folder / name
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read(path, **options)
    assert caught.value.hint
    assert str(path) in caught.value.message
    return caught.value


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Files are read in blocks of ``size`` bytes, so that block borders fall everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "BLOCK", size)
        patch.setattr(source_module, "_RAW_BLOCK", size)
        yield


class Fault(Exception):
    """The line that is no FASTA; 0 where the file holds no record."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def naive_read(data: bytes, gaps: str = "error") -> tuple[dict[str, str], int]:
    """The records of FASTA text, letter by letter, and how many blanks were dropped. Raises Fault."""
    records: dict[str, str] = {}
    blanks = star = 0
    name = ""
    text = data.removeprefix(BOM).decode("latin-1").replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip(_BLANKS)
        if bare.startswith(">"):
            blanks += len(line) - len(line.lstrip(_BLANKS)) if records else 0
            name, star = _name(bare[1:], number), 0
            if name in records:
                raise Fault(number)
            records[name] = ""
            continue
        if bare and not records:
            raise Fault(number)
        bases = ""
        for letter in line if records else "":
            if letter in _BLANKS:
                blanks += 1
            elif letter in "-.~" and gaps == "drop":
                continue
            elif star:
                raise Fault(star)
            elif letter == "*":
                star = number
            elif letter in "-.~" and gaps == "n":
                bases += "N"
            elif letter.upper() in LETTERS:
                bases += letter
            elif letter in "Uu":
                bases += "T" if letter == "U" else "t"
            else:
                raise Fault(number)
        if records:
            records[name] += bases
    if not records:
        raise Fault(0)
    return records, blanks


def _name(header: str, number: int) -> str:
    words = re.split(f"[{_BLANKS}]+", header.strip(_BLANKS))
    raw = words[0].encode("latin-1")
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = words[0]
    if not name or not name.isprintable() or name.startswith("#"):
        raise Fault(number)
    return name


def line_of(error: InputError, path: Path) -> int:
    """The line that ``error`` names, 0 if none."""
    found = re.match(re.escape(str(path)) + r", line ([\d,]+)", error.message)
    return int(found[1].replace(",", "")) if found else 0
