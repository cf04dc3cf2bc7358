"""``manifest.json``: what a store holds, and the digest that names its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from genoctx.errors import InputError
from genoctx.genome.alphabet import LETTERS

SCHEMA = 1
KIND = "genoctx-store"
MANIFEST = "manifest.json"

_AGAIN = "ingest the genome again: genoctx ingest FASTA -o STORE --force"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class SourceFile:
    """One file that was ingested."""

    path: str
    """Base name only: a store does not tell where on a disk its source lay."""
    sha256: str
    """Of the file's bytes, compressed as they were."""
    format: str
    """``plain``, ``gzip`` or ``bgzip``."""
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
    contigs: tuple[Contig, ...]
    softmask_sha256: str
    warnings: tuple[str, ...]
    """What ``ingest`` read over."""

    def to_json(self) -> str:
        """The text of the file: one line per key, and one per contig."""
        content: dict[str, Any] = {"kind": KIND, "schema": SCHEMA, "alphabet": LETTERS.decode(), **vars(self)}
        lines = [f" {json.dumps(key)}: {_json(value)}" for key, value in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: Any) -> str:
    if not isinstance(value, tuple) or not value:
        return json.dumps(value, allow_nan=False)
    # default=vars turns a dataclass into an object; asdict would copy it first, at ten times the cost
    return (
        "[\n  " + ",\n  ".join(json.dumps(entry, allow_nan=False, default=vars) for entry in value) + "\n ]"
    )


def content_digest(contigs: Iterable[Contig]) -> str:
    """sha256 over names, lengths and code bytes, the latter through each contig's own sha256.

    It does not depend on the file's path, time, line width, letter case or compression.
    """
    digest = hashlib.sha256(f"{KIND} {SCHEMA}\n".encode())
    for contig in contigs:
        digest.update(f"{contig.name}\t{contig.length}\t{contig.sha256}\n".encode())
    return digest.hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read and validate ``path``. Raises InputError saying what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"{path.parent} is not a genome store: it has no {MANIFEST}",
            f"make one with `genoctx ingest FASTA -o {path.parent}`",
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}", _AGAIN) from error
    try:
        return _build(data)
    except (KeyError, TypeError, ValueError) as error:
        what = f"no key {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path} is broken: {what}", _AGAIN) from error


def _build(data: Any) -> Manifest:
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ValueError(f"its kind is not {KIND!r}")
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r}, but this genoctx reads schema {SCHEMA}")
    if data["alphabet"] != LETTERS.decode():
        raise ValueError(f"alphabet {data['alphabet']!r}, but this genoctx knows {LETTERS.decode()!r}")
    contigs = tuple(_record(Contig, entry) for entry in data["contigs"])
    _check_contigs(contigs)
    if data["digest"] != content_digest(contigs):
        raise ValueError("its digest does not belong to its contigs")
    return Manifest(
        name=_text(data["name"]),
        created=_text(data["created"]),
        tool_version=_text(data["tool_version"]),
        digest=data["digest"],
        sources=tuple(_record(SourceFile, entry) for entry in data["sources"]),
        contigs=contigs,
        softmask_sha256=_text(data["softmask_sha256"]),
        warnings=tuple(_text(warning) for warning in data["warnings"]),
    )


def _check_contigs(contigs: tuple[Contig, ...]) -> None:
    if not contigs:
        raise ValueError("no contigs")
    if len({contig.name for contig in contigs}) < len(contigs):
        raise ValueError("two contigs have one name")
    offset = 0
    for contig in contigs:
        if contig.length < 1 or contig.offset != offset:
            raise ValueError(f"contig {contig.name!r} has an impossible length or offset")
        offset += contig.length


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) in (int, float) and 0 <= value <= 1,
    "dict[str, int]": lambda value: isinstance(value, dict) and all(type(n) is int for n in value.values()),
}


def _record(kind: Any, entry: Any) -> Any:
    """A dataclass from its JSON object; ValueError names the first field of a wrong type."""
    for field in fields(kind):
        if not _CHECKS[str(field.type)](entry[field.name]):
            raise ValueError(f"{field.name} = {entry[field.name]!r} in {kind.__name__.lower()}")
    return kind(**{field.name: entry[field.name] for field in fields(kind)})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} should be text")
    return value
