"""A genome store: one byte per base in a memory-mapped file, one bit per base for lower case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.builder import CODES, SOFTMASK
from genoctx.genome.ingest import build
from genoctx.genome.manifest import MANIFEST, Contig, Manifest, SourceFile
from genoctx.genome.manifest_reader import read_manifest
from genoctx.genome.painting import REGIONS
from genoctx.genome.select import ReadOptions

__all__ = ["Contig", "GenomeStore", "SourceFile", "ingest"]

_NAMED = 5


class GenomeStore:
    """A store on disk, read-only. Make one with ``GenomeStore.open``."""

    def __init__(
        self, path: Path, manifest: Manifest, codes: np.ndarray, mask: np.ndarray, regions: np.ndarray | None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.name = manifest.name
        self.digest = manifest.digest
        """sha256, hex: equal for equal names and bases, whatever file they came from."""
        self.contigs: tuple[Contig, ...] = manifest.contigs
        self._by_name = {contig.name: contig for contig in self.contigs}
        self._codes = codes
        self._mask = mask
        self._regions = regions

    @classmethod
    def open(cls, path: str | Path) -> GenomeStore:
        """Map the store at ``path``. Raises InputError if it is none, incomplete or edited."""
        path = Path(path)
        manifest = read_manifest(path / MANIFEST)
        bases = sum(contig.length for contig in manifest.contigs)
        mask = _map(path / SOFTMASK, -(-bases // 8))
        regions = _map(path / REGIONS, bases) if manifest.regions_sha256 else None
        return cls(path, manifest, _map(path / CODES, bases), mask, regions)

    @property
    def bases(self) -> int:
        """Bases of all contigs."""
        return self._codes.size

    @property
    def n_runs(self) -> int:
        """Stretches of N in all contigs."""
        return sum(contig.n_runs for contig in self.contigs)

    @property
    def annotated(self) -> bool:
        """Whether ``regions`` can be read."""
        return self._regions is not None

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

    def regions(self, contig_name: str, start: int, end: int) -> np.ndarray:
        """Class of each base of ``start..end-1``, an index into ``region_classes.CLASSES``: uint8, a view.

        Raises InputError for a store without annotation.
        """
        first, last = self._place(contig_name, start, end)
        if self._regions is None:
            raise InputError(
                f"{self.path} has no annotation",
                "ingest the genome again with --annotation FILE, a GFF3, GTF or BED",
            )
        return self._regions[first:last]

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
    options: ReadOptions | None = None,
    annotations: Sequence[str] = (),
    jobs: int = 1,
) -> GenomeStore:
    """Read sequence files into a new store at ``out``, in one pass.

    ``name`` defaults to the folder's; ``force`` replaces a store that is there. ``progress`` is called
    with the number of file bytes just read. ``options`` say which records are read and how,
    ``annotations`` are files whose features become classes of bases (``FILE=CLASS`` for a plain BED).
    ``jobs`` files are read at a time, with the same result. The store appears complete or not at all.
    Raises InputError for bad input, UsageError if ``out`` is taken.
    """
    build(
        [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)],
        out,
        name=name,
        force=force,
        progress=progress,
        options=options or ReadOptions(),
        annotations=annotations,
        jobs=jobs,
    )
    return GenomeStore.open(out)
