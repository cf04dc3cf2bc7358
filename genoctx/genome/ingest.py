"""Sequence files to the folder of a store: read, count, annotate, publish. Complete or not at all."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import genoctx
from genoctx.errors import InputError, UsageError
from genoctx.genome.builder import Built, StoreBuilder
from genoctx.genome.collector import no_collector
from genoctx.genome.intake import FileRead, joined, read_file
from genoctx.genome.manifest import MANIFEST, Manifest, content_digest, write_manifest
from genoctx.genome.notices import notices
from genoctx.genome.reader import ReadOptions, Selection
from genoctx.genome.source import STDIN
from genoctx.genome.staging import Staging, stage
from genoctx.genome.worker import load_part
from genoctx.genome.workers import Workers


def build(
    paths: Sequence[str],
    out: str | Path,
    *,
    name: str | None,
    force: bool,
    progress: Callable[[int], None] | None,
    options: ReadOptions,
    annotations: Sequence[str],
    jobs: int,
) -> None:
    """Write a new store to ``out``; see ``store.ingest``. Raises InputError, UsageError."""
    if not paths:
        raise UsageError("no FASTA file given", "genoctx ingest FASTA... -o STORE")
    if paths.count(STDIN) > 1:
        raise UsageError("standard input can be read only once", "give '-' once")
    if jobs < 1:
        raise UsageError(f"{jobs} jobs read nothing", "give --jobs 1 or more")
    target = Path(os.path.realpath(out))
    with stage(target, out, force) as staging, no_collector():
        with StoreBuilder(staging.folder) as builder:
            files = _read(paths, builder, options, staging, jobs, progress)
            if not builder.bases:
                raise InputError(f"{', '.join(paths)}: no sequence has any bases", "is the file complete?")
            built = builder.finish()
        manifest = _manifest(name or target.name, files, built)
        manifest = _annotated(manifest, staging.folder, annotations, files)
        write_manifest(staging.folder / MANIFEST, manifest)
        staging.publish()


def _read(
    paths: Sequence[str],
    builder: StoreBuilder,
    options: ReadOptions,
    staging: Staging,
    jobs: int,
    progress: Callable[[int], None] | None,
) -> list[FileRead]:
    """All files in their order, the way a single process does it, however many there are."""
    seen: dict[str, str] = {}
    selection = Selection(options)
    files = []
    with ExitStack() as stack:
        workers = None
        if jobs > 1 and len(paths) > 1:
            team = Workers(
                paths, options, staging.folder, jobs=jobs, lock=staging.lock.fileno(), progress=progress
            )
            workers = stack.enter_context(team)
        for index, path in enumerate(paths):
            place = workers.wait(index) if workers else None
            part = load_part(place) if place else None
            after = joined(part, seen, selection, options) if part else None
            if place and part and after:
                builder.append(place, part.built)
                seen.update(part.seen)
                selection = after
                files.append(part.file)
            else:
                # what a worker could not do, or not alone, is done here: so the errors are the same, too
                told = workers is not None and path != STDIN
                files.append(read_file(path, builder, seen, options, selection, None if told else progress))
            if workers:
                workers.discard(index)
    selection.require_used()
    return files


def _manifest(name: str, files: Sequence[FileRead], built: Built) -> Manifest:
    return Manifest(
        name=name,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool_version=genoctx.__version__,
        digest=content_digest(built.contigs),
        sources=tuple(file.source for file in files),
        annotations=(),
        contigs=built.contigs,
        softmask_sha256=built.softmask_sha256,
        regions_sha256="",
        warnings=(*(note for file in files for note in file.notes), *notices(built)),
    )


def _annotated(
    manifest: Manifest, folder: Path, annotations: Sequence[str], files: Sequence[FileRead]
) -> Manifest:
    """``manifest`` with what ``regions.u8`` says, which is written to ``folder`` if there is an annotation."""
    features = [feature for file in files for feature in file.features]
    if not annotations and not features:
        return manifest
    from genoctx.genome.regions import annotate

    painted = annotate(folder, manifest.contigs, annotations, features)
    contigs = zip(manifest.contigs, painted.counts, strict=True)
    return replace(
        manifest,
        annotations=painted.sources,
        contigs=tuple(replace(contig, region_counts=counts) for contig, counts in contigs),
        regions_sha256=painted.sha256,
        warnings=(*manifest.warnings, *painted.warnings),
        fits=tuple(f"{os.path.basename(path)}: {fit.describe()}" for path, fit in painted.fits),
    )
