"""The files that ``genoctx bench io`` reads: the user's in both forms, or a synthetic genome."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from genoctx.errors import InputError, WouldNotFit
from genoctx.files import sync_tree
from genoctx.genome.formats import GZIP_MAGIC

CONTIG = 50_000_000
"""Bases of each synthetic contig but the last."""

_WIDTH = 80
_ROWS = 1 << 14
_N_RUN = 10_000  # bases of N at the beginning of each contig
_MASKED = 300  # mean bases of a run in lower case; those in upper case are longer by half

# a random byte to a letter: 41 % G and C
_LETTERS = b"A" * 76 + b"C" * 52 + b"G" * 52 + b"T" * 76

_LEVEL = 6  # of gzip, its own default
_GZIPPED = 0.4  # bytes per base; measured 0.31 for this text, more for real genomes with a mask
_STORE = 1.125
_SPARE = 64 << 20


@dataclass(frozen=True)
class IoFiles:
    """One genome, twice."""

    plain: tuple[Path, ...]
    gzipped: tuple[Path, ...]
    folder: Path
    """For whatever the readers write."""
    synthetic: bool


@contextmanager
def io_files(fasta: Sequence[Path], size: int, say: Callable[[str], None]) -> Iterator[IoFiles]:
    """Files in a temporary folder: ``fasta`` as they are and in the other form, or ``size`` synthetic bases.

    Raises WouldNotFit where the disk has no room for them and a store, InputError for files that are missing.
    """
    _refuse_unfit(fasta, 0 if fasta else size)
    with tempfile.TemporaryDirectory(prefix="genoctx-bench-") as name:
        folder = Path(name)
        if fasta:
            pairs = [_both(path, folder / f"{number}.fa") for number, path in enumerate(fasta)]
        else:
            say(f"writing a synthetic genome of {size:,} bases, plain and as gzip")
            pairs = [(folder / "0.fa", folder / "0.fa.gz")]
            _write_synthetic(*pairs[0], size)
        sync_tree(folder)  # or the disk would still be busy with them
        plain, gzipped = zip(*pairs, strict=True)
        yield IoFiles(plain, gzipped, folder, not fasta)


def synthetic(size: int) -> Iterator[bytes]:
    """FASTA text of ``size`` bases, the same everywhere: random letters with 41 % G and C in lines of 80, runs
    of lower case (40 %), 10,000 N at the beginning of each contig of 50 million bases."""
    draw = random.Random(0)
    for number, first in enumerate(range(0, size, CONTIG), start=1):
        length = min(CONTIG, size - first)
        yield b">chr%d synthetic\n" % number
        for start in range(0, length, _ROWS * _WIDTH):
            count = min(_ROWS * _WIDTH, length - start)
            letters = np.frombuffer(bytearray(draw.randbytes(count).translate(_LETTERS)), dtype=np.uint8)
            _mask(letters, draw)
            letters[: max(0, min(_N_RUN, length // 10) - start)] = ord("N")
            yield _lines(letters)


def _mask(letters: np.ndarray, draw: random.Random) -> None:
    at = 0
    while at < letters.size:
        at += int(draw.expovariate(1 / (1.5 * _MASKED)))
        end = at + int(draw.expovariate(1 / _MASKED))
        letters[at:end] |= 0x20
        at = end


def _lines(letters: np.ndarray) -> bytes:
    whole = letters.size - letters.size % _WIDTH
    rows = np.full((whole // _WIDTH, _WIDTH + 1), ord("\n"), dtype=np.uint8)
    rows[:, :_WIDTH] = letters[:whole].reshape(-1, _WIDTH)
    rest = letters[whole:].tobytes()
    return rows.tobytes() + (rest + b"\n" if rest else b"")


def _write_synthetic(plain: Path, gzipped: Path, size: int) -> None:
    with plain.open("wb") as text, gzip.open(gzipped, "wb", _LEVEL) as packed:
        for block in synthetic(size):
            text.write(block)
            packed.write(block)


def _both(path: Path, plain: Path) -> tuple[Path, Path]:
    """``path`` as plain and as gzip; the form it does not have is written to ``plain``, or beside it."""
    gzipped = plain.with_name(f"{plain.name}.gz")
    if _is_gzip(path):
        with gzip.open(path) as source, plain.open("wb") as target:
            _copy(source, target, path)
        return plain, path
    with path.open("rb") as source, gzip.open(gzipped, "wb", _LEVEL) as target:
        shutil.copyfileobj(source, target)
    return path, gzipped


def _copy(source: BinaryIO | gzip.GzipFile, target: io.BufferedWriter, path: Path) -> None:
    try:
        shutil.copyfileobj(source, target)
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: {error}", f"check it with gzip -t {path}") from error


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def _refuse_unfit(fasta: Sequence[Path], size: int) -> None:
    bases = size
    for path in fasta:
        try:
            # a base takes at least two bits as gzip: four times the file is an upper bound for most
            bases += path.stat().st_size * (4 if _is_gzip(path) else 1)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}", "check the path") from error
    need = int(bases * (1.02 + _GZIPPED + _STORE)) + _SPARE
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if need > free:
        raise WouldNotFit(
            f"the files of {bases:,} bases and their store need {need:,} bytes, but {place} has {free:,} free",
            "give a smaller --size, or set TMPDIR to a folder with more room",
        )
