"""One sequence file into a store in the making, and what another process must tell that read one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genoctx.errors import InputError
from genoctx.genome.builder import Built, StoreBuilder
from genoctx.genome.manifest import SourceFile
from genoctx.genome.reader import ReadOptions, Selection, read_records
from genoctx.genome.source import Source

if TYPE_CHECKING:
    from genoctx.genome.genbank_features import Feature


@dataclass(frozen=True)
class FileRead:
    """What is known of an input file besides its bases."""

    source: SourceFile
    notes: tuple[str, ...]
    features: tuple[Feature, ...]
    """The annotation it brought along, as ``regions.annotate`` takes it."""


@dataclass(frozen=True)
class Part:
    """A file that a worker read on its own."""

    file: FileRead
    built: Built
    seen: dict[str, str]
    """Its names, and where they stand."""
    asked: list[str]
    """The names its selection was asked about, in order."""


def read_file(
    path: str,
    builder: StoreBuilder,
    seen: dict[str, str],
    options: ReadOptions,
    selection: Selection,
    progress: Callable[[int], None] | None,
) -> FileRead:
    """Add the contigs of ``path`` to ``builder``; see ``read_records`` for the rest. Raises InputError."""
    source = Source(path, progress)
    for piece in read_records(source, seen=seen, options=options, selection=selection):
        builder.add(piece, source.name)
    record = SourceFile(source.name, source.sha256, source.format, source.bytes)
    return FileRead(record, tuple(source.notes), tuple(source.features))


def joined(part: Part, seen: dict[str, str], selection: Selection, options: ReadOptions) -> Selection | None:
    """The selection after ``part``, if that came out as it would have after the files read before.

    ``seen`` and ``selection`` are those of these files; they are not changed. None if a name is taken, or
    if what they hold changes which records are chosen.
    """
    if not seen.keys().isdisjoint(part.seen):
        return None
    together, alone = copy.deepcopy(selection), Selection(options)
    try:
        same = all(together.choose(name) == alone.choose(name) for name in part.asked)
    except InputError:
        return None
    return together if same else None
