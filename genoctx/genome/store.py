"""A genome store: one byte per base in a memory-mapped file, one bit per base for lower case."""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import genoctx
from genoctx.errors import InputError, UsageError
from genoctx.files import sync_folder, write_atomic
from genoctx.genome.builder import CODES, SOFTMASK, StoreBuilder
from genoctx.genome.manifest import (
    MANIFEST,
    Contig,
    Manifest,
    SourceFile,
    content_digest,
    read_manifest,
)
from genoctx.genome.reader import read_records
from genoctx.genome.source import STDIN, Source

__all__ = ["Contig", "GenomeStore", "SourceFile", "ingest"]

_ALL_LOWER = 0.95
_NAMED = 5


class GenomeStore:
    """A store on disk, read-only. Make one with ``GenomeStore.open``."""

    def __init__(self, path: Path, manifest: Manifest, codes: np.ndarray, mask: np.ndarray) -> None:
        self.path = path
        self.manifest = manifest
        self.name = manifest.name
        self.digest = manifest.digest
        """sha256, hex: equal for equal names and bases, whatever file they came from."""
        self.contigs: tuple[Contig, ...] = manifest.contigs
        self._by_name = {contig.name: contig for contig in self.contigs}
        self._codes = codes
        self._mask = mask

    @classmethod
    def open(cls, path: str | Path) -> GenomeStore:
        """Map the store at ``path``. Raises InputError if it is none, incomplete or edited."""
        path = Path(path)
        manifest = read_manifest(path / MANIFEST)
        bases = sum(contig.length for contig in manifest.contigs)
        return cls(path, manifest, _map(path / CODES, bases), _map(path / SOFTMASK, -(-bases // 8)))

    @property
    def bases(self) -> int:
        """Bases of all contigs."""
        return self._codes.size

    @property
    def n_runs(self) -> int:
        """Stretches of N in all contigs."""
        return sum(contig.n_runs for contig in self.contigs)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What ``ingest`` read over."""
        return self.manifest.warnings

    def contig(self, name: str) -> Contig:
        """The contig called ``name``. Raises InputError naming what there is."""
        if name not in self._by_name:
            known = ", ".join(list(self._by_name)[:_NAMED]) + (", ..." if len(self.contigs) > _NAMED else "")
            raise InputError(f"{self.path} has no contig {name!r}", f"it has {known}")
        return self._by_name[name]

    def codes(self, contig_name: str, start: int, end: int) -> np.ndarray:
        """Codes of bases ``start..end-1``: uint8, read-only, a view of the memory map.

        Raises InputError where the interval leaves the contig.
        """
        first, last = self._place(contig_name, start, end)
        return self._codes[first:last]

    def softmask(self, contig_name: str, start: int, end: int) -> np.ndarray:
        """Which bases of ``start..end-1`` were written in lower case: bool, a copy."""
        first, last = self._place(contig_name, start, end)
        byte = first // 8
        bits = np.unpackbits(self._mask[byte : -(-last // 8)], count=last - 8 * byte)
        return bits[first - 8 * byte :].view(bool)

    def _place(self, contig_name: str, start: int, end: int) -> tuple[int, int]:
        contig = self.contig(contig_name)
        if not 0 <= start <= end <= contig.length:
            raise InputError(
                f"{contig_name} {start}-{end} lies outside the contig, which has {contig.length:,} bases",
                "coordinates are 0-based and half-open",
            )
        return contig.offset + start, contig.offset + end


def _map(path: Path, size: int) -> np.ndarray:
    try:
        found = path.stat().st_size
        if found != size:
            raise InputError(
                f"{path} has {found:,} bytes where the manifest says {size:,}",
                "the store is incomplete: copy it again, or ingest the genome again with --force",
            )
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            "the store is incomplete: copy it again, or ingest the genome again with --force",
        ) from error


def ingest(
    paths: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    name: str | None = None,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> GenomeStore:
    """Read FASTA files into a new store at ``out``, in one pass.

    ``name`` defaults to the folder's; ``force`` replaces a store that is there. ``progress`` is called
    with the number of file bytes just read. The store appears complete or not at all. Raises InputError
    for bad input, UsageError if ``out`` is taken.
    """
    sources = [Source(p, progress) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not sources:
        raise UsageError("no FASTA file given", "genoctx ingest FASTA... -o STORE")
    if sum(source.path == STDIN for source in sources) > 1:
        raise UsageError("standard input can be read only once", "give '-' once")
    target = Path(os.path.realpath(out))
    _refuse_taken(target, out, force)
    with _folder_for(target) as folder, StoreBuilder(folder) as builder:
        seen: dict[str, str] = {}
        for source in sources:
            for piece in read_records(source, seen=seen):
                builder.add(piece, source.name)
        if not builder.bases:
            builder.finish()
            where = ", ".join(source.path for source in sources)
            raise InputError(f"{where}: no sequence has any bases", "is the file complete?")
        manifest = _manifest(name or target.name, sources, builder)
        write_atomic(folder / MANIFEST, manifest.to_json())
        _publish(folder, target, out, force)
    return GenomeStore.open(out)


def _manifest(name: str, sources: list[Source], builder: StoreBuilder) -> Manifest:
    mask_sha = builder.finish()
    contigs = tuple(builder.contigs)
    return Manifest(
        name=name,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool_version=genoctx.__version__,
        digest=content_digest(contigs),
        sources=tuple(SourceFile(s.name, s.sha256, s.format, s.bytes) for s in sources),
        contigs=contigs,
        softmask_sha256=mask_sha,
        warnings=tuple(_warnings(sources, builder)),
    )


def _warnings(sources: list[Source], builder: StoreBuilder) -> Iterator[str]:
    for source in sources:
        yield from source.notes
    if builder.empty:
        names = ", ".join(builder.empty[:_NAMED]) + (", ..." if len(builder.empty) > _NAMED else "")
        yield f"{len(builder.empty):,} records without bases were skipped: {names}"
    uracils = sum(contig.uracil_count for contig in builder.contigs)
    if uracils:
        yield f"{uracils:,} U were read as T"
    share = builder.lower / builder.bases
    if share > _ALL_LOWER:
        yield f"{100 * share:.1f} % of the bases are lower case: that is a way of writing, not a repeat mask"


def _refuse_taken(target: Path, out: str | Path, force: bool) -> None:
    if not target.exists():
        return
    if not force:
        raise UsageError(f"{out} exists already", "choose another place, or replace it with --force")
    if not (target / MANIFEST).is_file():
        raise UsageError(f"{out} is not a genome store: --force will not remove it", "choose another place")


@contextmanager
def _folder_for(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, gone afterwards, with the parents it needed if the work failed."""
    missing = [p for p in target.parents if not p.exists()]
    folder = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in missing:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def _publish(folder: Path, target: Path, out: str | Path, force: bool) -> None:
    """Put the finished ``folder`` at ``target``; an older store leaves only once the new one is there."""
    sync_folder(folder)
    _refuse_taken(target, out, force)  # it may have appeared while we were reading
    old = folder.with_suffix(".replaced")
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(folder, target)
    except BaseException:
        if old.exists():
            os.rename(old, target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
