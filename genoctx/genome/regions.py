"""Which kind of sequence each base is: annotations painted into ``regions.u8``, one byte per base."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genoctx.errors import InputError
from genoctx.genome.annotation_file import AnnotationLines
from genoctx.genome.bed_features import Bed
from genoctx.genome.builder import CODES
from genoctx.genome.fit import LEAST, SHARE, Fit, check_fit
from genoctx.genome.genbank_features import Feature, feature_table
from genoctx.genome.gene_models import Models, build_models
from genoctx.genome.gff import Gff
from genoctx.genome.layers import SOLID, Layers
from genoctx.genome.manifest import Contig, SourceFile
from genoctx.genome.painting import REGIONS, paint
from genoctx.genome.places import Places
from genoctx.genome.region_classes import CLASSES, INTERGENIC, class_number
from genoctx.genome.source import Source
from genoctx.genome.spans import Spans

__all__ = ["CLASSES", "REGIONS", "Painted", "annotate"]

_SHOWN = 5


@dataclass(frozen=True)
class Painted:
    """What ``annotate`` wrote."""

    counts: tuple[dict[str, int], ...]
    """Per contig, in the order given: bases of each class that occurs."""
    sha256: str
    """Of ``regions.u8``."""
    sources: tuple[SourceFile, ...]
    """The annotation files; their ``format`` says compression, dialect and class, as ``gzip bed=repeat``."""
    warnings: tuple[str, ...]
    fits: tuple[tuple[str, Fit], ...]
    """Per annotation with gene models: its path, and how well its ends fit the bases."""


def annotate(
    folder: Path, contigs: Sequence[Contig], annotations: Sequence[str], features: Sequence[Feature]
) -> Painted:
    """Write ``regions.u8`` beside the ``codes.u8`` of ``contigs`` in ``folder``, durably.

    ``annotations`` are paths of GFF3, GTF or BED files, plain or compressed with gzip; ``PATH=CLASS`` makes
    every row of a file an interval of that class. ``features`` come from GenBank records. Neither the
    order of files nor that of lines matters. Raises InputError, also for gene models that do not fit the
    bases, and UsageError.
    """
    places = Places(contigs)
    layers: Layers = {}
    sources: list[SourceFile] = []
    warnings: list[str] = []
    fits: list[tuple[str, Fit]] = []

    def take(models: Models, path: str) -> None:
        for key, spans in models.layers.items():
            layers.setdefault(key, []).extend(spans)
        # where genes are annotated, what is in none of them lies between them
        genes = models.contigs
        layers.setdefault((INTERGENIC, SOLID), []).append(Spans(places.starts[genes], places.ends[genes]))
        if len(models.introns) or len(models.coding):
            fit = check_fit(folder / CODES, models, path)
            fits.append((path, fit))
            warnings.extend(_odd(fit, path))

    for text in annotations:
        path, number = _path_and_class(text)
        source = Source(path)
        models, remarks, form = _read(source, number, places)
        take(models, path)
        warnings += [*remarks, *source.notes]
        sources.append(SourceFile(source.name, source.sha256, form, source.bytes))
    if features:
        take(build_models(feature_table(features, places), places), "the GenBank annotation")
    counts, sha256 = paint(folder, places, layers)
    return Painted(tuple(_named(counts)), sha256, tuple(sources), tuple(warnings), tuple(fits))


def _path_and_class(text: str) -> tuple[str, int | None]:
    """``PATH=CLASS`` apart; a file that has ``=`` in its name is a path."""
    path, equals, name = text.rpartition("=")
    if not equals or os.path.exists(text):
        return text, None
    return path, class_number(name, text)


def _read(source: Source, number: int | None, places: Places) -> tuple[Models, list[str], str]:
    """Models of one file, remarks about it, and its format in words."""
    lines = AnnotationLines(source)
    reader: Gff | Bed = (Bed if lines.dialect == "bed" else Gff)(lines, places, number)
    remarks = [*reader.notes, places.judge(reader.matched, reader.unknown, source.path)]
    if not len(reader.table):
        raise _nothing(source.path, reader.unused)
    models = build_models(reader.table, places)
    if models.bare and not models.structured:
        raise InputError(
            f"{source.path} has {models.bare:,} genes, but neither exons nor coding parts",
            "give the full annotation of the genome; GFF3 of NCBI and Ensembl have exon and CDS rows",
        )
    if models.guessed:
        remarks.append(
            f"{source.path}: transcripts with a coding part but no exons: {models.guessed:,}; their ends "
            "outside of it were taken for UTR"
        )
    form = f"{source.format} {lines.dialect}" + (f"={CLASSES[number]}" if number is not None else "")
    return models, [remark for remark in remarks if remark], form


def _nothing(path: str, unused: Counter[str]) -> InputError:
    listed = ", ".join(f"{feature} ({count:,})" for feature, count in unused.most_common(_SHOWN))
    return InputError(
        f"{path} has no feature that tells what a base is" + (f", only {listed}" if listed else ""),
        f"genes, exons, CDS and repeats do; or say what all its rows are: {path}=CLASS, for instance =repeat",
    )


def _odd(fit: Fit, path: str) -> Iterator[str]:
    if fit.introns >= LEAST and fit.splice < SHARE:
        yield (
            f"{path}: its coding parts fit, but few of its introns begin with GT (or GC) and end with AG: "
            f"{fit.describe()}"
        )


def _named(counts: np.ndarray) -> Iterator[dict[str, int]]:
    """Rows of counts by class, without zeros."""
    for row in counts:  # one by one: as lists they would take many times the memory
        yield {name: count for name, count in zip(CLASSES, row.tolist(), strict=True) if count}
