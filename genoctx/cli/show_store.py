"""The store part of ``genoctx show``, and the summary of ``genoctx ingest``: one table, one set of totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genoctx.cli.console import Console, is_terminal
from genoctx.errors import InputError

if TYPE_CHECKING:
    from genoctx.genome.manifest import Contig, SourceFile
    from genoctx.genome.store import GenomeStore

HEAD = 40
"""Contigs listed one by one where a person reads; a draft assembly has thousands."""

_SHORT = 12  # digits of a digest that tell files apart
_WIDTH = 80
_BLOCK = 13_000 * _WIDTH  # bases of a FASTA text that is written at a time


def show(console: Console, path: str, interval: str | None, head: int | None) -> None:
    """Print the store at ``path``, or the bases of ``interval``. Raises InputError, UsageError."""
    from genoctx.genome.store import GenomeStore

    store = GenomeStore.open(Path(path))
    if interval is not None:
        _show_bases(console, store, interval)
    elif console.json:
        console.emit({"what": "store", **describe(store)})
    else:
        if head is None:
            head = HEAD if is_terminal(console.stdout) else len(store.contigs)
        summarise(console, store, head, stdout=True)
        for file in store.manifest.sources:
            console.info(f"source: {_file(file)}")
        for file in store.manifest.annotations:
            console.info(f"annotation: {_file(file)}")
        for fit in store.manifest.fits:
            console.info(f"fit: {fit}")
        for warning in store.warnings:
            console.warn(warning)


def describe(store: GenomeStore) -> dict[str, Any]:
    """Everything that is known of ``store`` without reading its bases, for ``--json``."""
    from genoctx.genome.manifest import CONTIG_COLUMNS

    manifest = store.manifest
    return {
        "store": str(store.path),
        "name": store.name,
        "digest": store.digest,
        "created": manifest.created,
        "tool_version": manifest.tool_version,
        "bases": store.bases,
        "total": totals(store.contigs),
        "contigs": [{name: getattr(contig, name) for name in CONTIG_COLUMNS} for contig in store.contigs],
        "sources": [vars(file) for file in manifest.sources],
        "annotations": [vars(file) for file in manifest.annotations],
        "fits": list(manifest.fits),
        "warnings": list(store.warnings),
    }


def summarise(console: Console, store: GenomeStore, head: int, *, stdout: bool) -> None:
    """One row per contig, at most ``head`` (then the longest), and the totals. Data go to stdout if asked."""
    people = not stdout or is_terminal(console.stdout)
    total = totals(store.contigs)
    classes = list(total["classes"])
    names = (
        ("GC", "N", "N runs", "IUPAC", "soft-masked")
        if people
        else ("gc", "n", "n_runs", "iupac", "softmask")
    )
    shown: Sequence[Contig] = store.contigs
    if len(shown) > head:
        shown = sorted(shown, key=lambda contig: -contig.length)[:head]
    rows = (_row(contig, classes, people) for contig in shown)
    console.table("", ["contig", "length", *names, *classes], rows, stdout=stdout)
    if len(shown) < len(store.contigs):
        hidden = len(store.contigs) - len(shown)
        console.info(f"... and {hidden:,} more: genoctx show {store.path} --head N lists the N longest")
    contigs = f"{len(store.contigs):,} contig{'s' if len(store.contigs) > 1 else ''}"
    console.info(f"{store.name}: {contigs}, {store.bases:,} bases, digest {store.digest}")
    parts = [
        f"GC {percent(total['gc'])}",
        f"N {percent(total['n_count'] / store.bases)} in {total['n_runs']:,} runs",
        f"IUPAC {_letters(total['iupac_counts'])}",
        f"soft-masked {percent(total['softmask_fraction'])}",
        *(f"{name} {percent(count / store.bases)}" for name, count in total["classes"].items()),
    ]
    console.info(f"total: {', '.join(parts)}")


def totals(contigs: Iterable[Contig]) -> dict[str, Any]:
    """GC, N, ambiguity letters, soft-masked share and bases per class over all ``contigs``."""
    bases = plain = strong = n_count = n_runs = lower = 0
    letters: Counter[str] = Counter()
    regions: Counter[str] = Counter()
    for contig in contigs:
        acgt = contig.length - contig.n_count
        if contig.iupac_counts:
            letters.update(contig.iupac_counts)
            acgt -= sum(contig.iupac_counts.values())
        if contig.region_counts:
            regions.update(contig.region_counts)
        bases += contig.length
        plain += acgt
        strong += round(contig.gc * acgt)
        n_count += contig.n_count
        n_runs += contig.n_runs
        lower += round(contig.softmask_fraction * contig.length)
    return {
        "gc": strong / plain if plain else 0.0,
        "n_count": n_count,
        "n_runs": n_runs,
        "iupac_counts": dict(sorted(letters.items())),
        "softmask_fraction": lower / bases,
        "classes": _classes(regions),
    }


def percent(share: float) -> str:
    """``12.3%``; a share that is not zero never prints as zero, nor one below 1 as 100 %."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{100 * share:.1f}%"


def _classes(regions: dict[str, int]) -> dict[str, int]:
    """Bases per class, the three codon positions as one, in the order of precedence."""
    from genoctx.genome.region_classes import CLASSES

    found: Counter[str] = Counter()
    for name in reversed(CLASSES):
        if regions.get(name):
            found[name.rstrip("123")] += regions[name]
    return dict(found)


def _row(contig: Contig, classes: Sequence[str], people: bool) -> list[Any]:
    mine = _classes(contig.region_counts) if classes else {}
    share = percent if people else float
    return [
        contig.name,
        contig.length,
        share(contig.gc),
        percent(contig.n_count / contig.length) if people else contig.n_count,
        contig.n_runs,
        _letters(contig.iupac_counts),
        share(contig.softmask_fraction),
        *(share(mine.get(name, 0) / contig.length) for name in classes),
    ]


def _letters(counts: dict[str, int]) -> str:
    return ",".join(f"{letter}:{count}" for letter, count in sorted(counts.items())) or "-"


def _file(file: SourceFile) -> str:
    return f"{file.path} ({file.format}, {file.bytes:,} bytes, sha256 {file.sha256[:_SHORT]})"


def _show_bases(console: Console, store: GenomeStore, interval: str) -> None:
    name, start, end = _find(store, interval)
    if console.json:
        sequence = "".join(_bases(store, name, start, end))
        console.emit({"contig": name, "start": start, "end": end, "sequence": sequence})
        return
    console.print(f">{name}:{start + 1}-{end}")
    for text in _bases(store, name, start, end):
        console.print("\n".join(text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)))


def _find(store: GenomeStore, interval: str) -> tuple[str, int, int]:
    """Contig, 0-based start and exclusive end of a contig's name, ``chr5:1-80`` or ``chr5:100-``."""
    from genoctx.genome.names import suggest
    from genoctx.genome.select import parse_region

    names = [contig.name for contig in store.contigs]
    known = set(names)
    if interval in known:
        return interval, 0, store.contig(interval).length
    contig, _, first = interval.removesuffix("-").rpartition(":")
    if contig in known and first.replace(",", "").isdecimal():  # to its end, as samtools reads chr5:100
        interval = f"{contig}:{first}-{max(store.contig(contig).length, int(first.replace(',', '')))}"
    name, start, end = parse_region(interval) or (interval, 0, 0)
    if name not in known:
        raise InputError(f"{store.path} has no contig {name!r}", suggest(name, names))
    length = store.contig(name).length
    if end > length:
        raise InputError(
            f"{interval} reaches past the end of {name}, which has {length:,} bases",
            "both ends are counted from 1 and belong to the interval",
        )
    return name, start, end


def _bases(store: GenomeStore, name: str, start: int, end: int) -> Iterator[str]:
    """The letters, lower case where soft-masked, in blocks of whole lines."""
    import numpy as np

    from genoctx.genome.alphabet import decode

    for first in range(start, end, _BLOCK):
        last = min(first + _BLOCK, end)
        letters = np.frombuffer(bytearray(decode(store.codes(name, first, last))), dtype=np.uint8)
        letters |= store.softmask(name, first, last).astype(np.uint8) << 5
        yield letters.tobytes().decode()
