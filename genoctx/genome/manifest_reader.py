"""Reads ``manifest.json`` and believes nothing in it; columns are checked whole, for a million contigs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from genoctx.errors import InputError
from genoctx.genome.alphabet import LETTERS
from genoctx.genome.collector import no_collector
from genoctx.genome.manifest import (
    CONTIG_COLUMNS,
    KIND,
    MANIFEST,
    SCHEMA,
    Contig,
    Manifest,
    SourceFile,
    content_digest,
)

_AGAIN = "ingest the genome again: genoctx ingest FASTA -o STORE --force"


def read_manifest(path: Path) -> Manifest:
    """Read and validate ``path``. Raises InputError saying what is wrong with it."""
    with no_collector():
        data = _load(path)
        try:
            return _build(data)
        except (KeyError, TypeError, ValueError) as error:
            what = f"no key {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{path} is broken: {what}", _AGAIN) from error


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{path.parent} is not a genome store: it has no {MANIFEST}",
            f"make one with `genoctx ingest FASTA -o {path.parent}`",
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", _AGAIN) from error


def _build(data: Any) -> Manifest:
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ValueError(f"its kind is not {KIND!r}")
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r}, but this genoctx reads schema {SCHEMA}")
    if data["alphabet"] != LETTERS.decode():
        raise ValueError(f"alphabet {data['alphabet']!r}, but this genoctx knows {LETTERS.decode()!r}")
    contigs = _contigs(data.pop("contigs"))
    if data["digest"] != content_digest(contigs):
        raise ValueError("its digest does not belong to its contigs")
    return Manifest(
        name=_text(data["name"]),
        created=_text(data["created"]),
        tool_version=_text(data["tool_version"]),
        digest=data["digest"],
        sources=tuple(_source(entry) for entry in data["sources"]),
        annotations=tuple(_source(entry) for entry in data["annotations"]),
        contigs=contigs,
        softmask_sha256=_text(data["softmask_sha256"]),
        regions_sha256=_text(data["regions_sha256"]),
        warnings=tuple(_text(warning) for warning in data["warnings"]),
        fits=tuple(_text(fit) for fit in data.get("fits", ())),
    )


def _contigs(table: Any) -> tuple[Contig, ...]:
    if table["columns"] != list(CONTIG_COLUMNS):
        raise ValueError(f"the columns of its contigs are not {', '.join(CONTIG_COLUMNS)}")
    rows = table["rows"]
    if not rows:
        raise ValueError("no contigs")
    if set(map(len, rows)) != {len(CONTIG_COLUMNS)}:
        raise ValueError(f"a contig does not have {len(CONTIG_COLUMNS)} entries")
    for index, column in enumerate(fields(Contig)):
        _check(str(column.type), column.name, [row[index] for row in rows], "contig")
    contigs = tuple(Contig(*row) for row in rows)
    if len({contig.name for contig in contigs}) < len(contigs):
        raise ValueError("two contigs have one name")
    for contig, offset in zip(contigs, accumulate((c.length for c in contigs), initial=0), strict=False):
        if contig.length < 1 or contig.offset != offset:
            raise ValueError(f"contig {contig.name!r} has an impossible length or offset")
    return contigs


def _source(entry: Any) -> SourceFile:
    for column in fields(SourceFile):
        _check(str(column.type), column.name, [entry[column.name]], "sourcefile")
    return SourceFile(**{column.name: entry[column.name] for column in fields(SourceFile)})


def _are_counts(values: Iterable[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


_TYPES: dict[str, tuple[set[type], Callable[[Sequence[Any]], bool]]] = {
    "str": ({str}, lambda values: True),
    "int": ({int}, lambda values: min(values) >= 0),
    "float": ({float, int}, lambda values: all(0 <= value <= 1 for value in values)),
    "dict[str, int]": ({dict}, lambda values: all(_are_counts(d.values()) for d in values if d)),
}


def _check(kind: str, name: str, values: Sequence[Any], what: str) -> None:
    """ValueError that names the first of ``values`` that is no ``kind``."""
    types, good = _TYPES[kind]
    if set(map(type, values)) <= types and good(values):
        return
    bad = next(value for value in values if type(value) not in types or not good([value]))
    raise ValueError(f"{name} = {bad!r} in {what}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} should be text")
    return value
