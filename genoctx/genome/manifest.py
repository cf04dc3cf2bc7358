"""``manifest.json``: what a store holds, and the digest that names its content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from genoctx.genome.alphabet import LETTERS

SCHEMA = 2
KIND = "genoctx-store"
MANIFEST = "manifest.json"

_DIGEST = f"{KIND} 1\n"  # the digest's own version: how a manifest is laid out does not change the content


@dataclass(frozen=True, slots=True)
class Contig:
    """One sequence of a store."""

    name: str
    length: int
    """Bases."""
    offset: int
    """Where it begins in ``codes.u8``."""
    sha256: str
    """Of its code bytes."""
    gc: float
    """(C + G) / (A + C + G + T)."""
    n_runs: int
    """Stretches of consecutive N."""
    n_count: int
    """Bases that are N."""
    iupac_counts: dict[str, int]
    """Ambiguity letters other than N that occur, with their number."""
    softmask_fraction: float
    """Share of bases written in lower case."""
    uracil_count: int
    """Bases written U and stored as T."""
    source: str
    """File name it came from."""
    line: int
    """Line of its header there, counted from 1."""
    region_counts: dict[str, int] = field(default_factory=dict)
    """Bases of each class of ``regions.u8`` that occurs; empty without annotation."""


CONTIG_COLUMNS = tuple(column.name for column in fields(Contig))
_row = attrgetter(*CONTIG_COLUMNS)


@dataclass(frozen=True)
class SourceFile:
    """One file that was ingested, or an annotation."""

    path: str
    """Base name only: a store does not tell where on a disk its source lay."""
    sha256: str
    """Of the file's bytes, compressed as they were."""
    format: str
    """``plain``, ``gzip`` or ``bgzip``; for an annotation what ``annotate`` calls it."""
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """Everything in ``manifest.json``."""

    name: str
    created: str
    """UTC, ISO 8601."""
    tool_version: str
    digest: str
    sources: tuple[SourceFile, ...]
    annotations: tuple[SourceFile, ...]
    contigs: tuple[Contig, ...]
    softmask_sha256: str
    regions_sha256: str
    """Of ``regions.u8``; empty without annotation."""
    warnings: tuple[str, ...]
    """What ``ingest`` read over."""
    fits: tuple[str, ...] = ()
    """How well the gene models of each annotation fit the bases, in words."""

    def lines(self) -> Iterator[str]:
        """The text of the file: one line per key, and one per source, contig and warning."""
        content = {"kind": KIND, "schema": SCHEMA, "alphabet": LETTERS.decode(), **vars(self)}
        opening = "{\n"
        for key, value in content.items():
            yield f'{opening} "{key}": '
            if key == "contigs":
                yield f'{{"columns": {json.dumps(CONTIG_COLUMNS)}, "rows": '
                yield from _list(_row(contig) for contig in self.contigs)
                yield "}"
            elif isinstance(value, tuple):
                yield from _list(value)
            else:
                yield json.dumps(value)
            opening = ",\n"
        yield "\n}\n"


def _list(entries: Iterable[Any]) -> Iterator[str]:
    encode = json.JSONEncoder(allow_nan=False, default=vars).encode
    between = "[\n  "
    for entry in entries:
        yield between
        yield encode(entry)
        between = ",\n  "
    yield "[]" if between.startswith("[") else "\n ]"


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write ``manifest`` durably to ``path``, which must not be a place that others read yet."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(manifest.lines())
        file.flush()
        os.fsync(file.fileno())


def content_digest(contigs: Iterable[Contig]) -> str:
    """sha256 over names, lengths and code bytes, the latter through each contig's own sha256.

    It does not depend on the file's path, time, line width, letter case, compression or annotation.
    """
    digest = hashlib.sha256(_DIGEST.encode())
    for contig in contigs:
        digest.update(f"{contig.name}\t{contig.length}\t{contig.sha256}\n".encode())
    return digest.hexdigest()
