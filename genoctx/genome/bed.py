"""Intervals of a BED file, checked against the contigs they lie on."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from genoctx.errors import InputError
from genoctx.genome.formats import GZIP_MAGIC
from genoctx.genome.manifest import Contig
from genoctx.genome.names import require_contigs

Span = tuple[int, int]
"""Start and end, 0-based and half-open."""

_DIGITS = 19  # that many make no position in any sequence, and thousands make int() raise
_NO_DATA = ("#", "track ", "track\t", "browser ", "browser\t")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """``(line number from 1, text)`` of a file, plain or gzip, without line ends. Raises InputError."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data).decode("utf-8")
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path}: damaged gzip data: {error}", "fetch or compress it again") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text", "is it the right file?") from error
    # not splitlines(): that also breaks at characters which may stand in a contig's name
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        if line:
            yield number, line


def bed_rows(path: str | Path) -> Iterator[tuple[str, str, Span]]:
    """``(where, contig, span)`` of every interval in file order; ``where`` is file and line, for messages.

    Raises InputError with it, also for a file without any interval.
    """
    empty = True
    for number, line in text_lines(Path(path)):
        if not line.strip() or line.startswith(_NO_DATA) or line.strip() in ("track", "browser"):
            continue
        where = f"{path}, line {number}"
        fields = line.split()
        if len(fields) < 3:
            raise InputError(
                f"{where}: {len(fields)} columns instead of contig, start, end", "see `man bedtools`"
            )
        empty = False
        yield where, fields[0], parse_span(fields[1], fields[2], where)
    if empty:
        raise InputError(f"{path} holds no interval", "one line per interval: contig, start, end")


def read_bed(path: str | Path, contigs: Sequence[Contig]) -> dict[str, list[Span]]:
    """The spans of each contig, in file order. Raises InputError with file and line."""
    lengths = {contig.name: contig.length for contig in contigs}
    spans: dict[str, list[Span]] = {}
    unknown = ""
    for where, contig, span in bed_rows(path):
        spans.setdefault(contig, []).append(span)
        if contig not in lengths:
            unknown = unknown or where
        elif span[1] > lengths[contig]:
            raise InputError(
                f"{where}: the interval ends at {span[1]:,}, but {contig} has {lengths[contig]:,} bases",
                "does the file belong to this genome assembly?",
            )
    if unknown:
        require_contigs(spans, list(lengths), unknown)
    return spans


def parse_span(start: str, end: str, where: str) -> Span:
    """Two columns as a span that is not empty. Raises InputError."""
    if not all(text.isascii() and text.isdigit() and len(text) < _DIGITS for text in (start, end)):
        raise InputError(
            f"{where}: start {start!r} and end {end!r} are not whole numbers", "BED counts from 0"
        )
    if int(start) >= int(end):
        raise InputError(
            f"{where}: the interval {start}-{end} is empty", "start is 0-based and end is exclusive in BED"
        )
    return int(start), int(end)


def merge(spans: Iterable[Span]) -> list[Span]:
    """Sorted spans in which overlapping and touching ones are one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
