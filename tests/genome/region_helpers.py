"""Small stores without an ingest, and regions as text: one letter per base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from genoctx.genome.alphabet import encode
from genoctx.genome.manifest import Contig
from genoctx.genome.regions import CLASSES, REGIONS, Painted, annotate

SIGNS = dict(zip(CLASSES, ".-irneu321", strict=True))
"""``.`` unannotated, ``-`` intergenic, ``i`` intron, ``r`` repeat, ``n`` ncRNA, ``e`` exon, ``u`` UTR,
and the place in the codon."""


def lay_out(folder: Path, sequences: Mapping[str, str]) -> list[Contig]:
    """Write ``codes.u8`` of ``sequences`` to ``folder``; the contigs as a manifest would have them."""
    folder.mkdir(exist_ok=True)
    (folder / "codes.u8").write_bytes(encode("".join(sequences.values()).encode()).tobytes())
    contigs, offset = [], 0
    for name, bases in sequences.items():
        contigs.append(Contig(name, len(bases), offset, "", 0.0, 0, 0, {}, 0.0, 0, "g.fa", 1))
        offset += len(bases)
    return contigs


class Board:
    """Paints annotations onto sequences in a folder of its own."""

    def __init__(self, folder: Path, sequences: Mapping[str, str] | Mapping[str, int]) -> None:
        self.folder = folder
        self.contigs = lay_out(
            folder / "store", {n: s if isinstance(s, str) else "A" * s for n, s in sequences.items()}
        )
        self.painted: Painted | None = None

    def write(self, text: str | bytes, name: str = "a") -> str:
        """The path of a new annotation file."""
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def paint(self, *texts: str | bytes, made: str = "", features: Sequence = ()) -> dict[str, str]:
        """Regions of each contig as signs, after the files ``texts``, each given as ``FILE{made}``."""
        paths = [self.write(text, f"a{number}") + made for number, text in enumerate(texts)]
        return self.paint_files(*paths, features=features)

    def paint_files(self, *paths: str, features: Sequence = ()) -> dict[str, str]:
        """The same of files that exist."""
        self.painted = annotate(self.folder / "store", self.contigs, paths, features)
        regions = (self.folder / "store" / REGIONS).read_bytes()
        assert len(regions) == sum(contig.length for contig in self.contigs)
        signs = regions.translate("".join(SIGNS.values()).ljust(256, "?").encode()).decode()
        return {c.name: signs[c.offset : c.offset + c.length] for c in self.contigs}


def gff(*rows: str, name: str = "c") -> str:
    """GFF3 of rows like ``exon 5 9 + . Parent=t``: type, start, end, strand, phase, attributes."""
    return "##gff-version 3\n" + "".join(_line(name, row) for row in rows)


def gtf(*rows: str, name: str = "c") -> str:
    """The same as GTF; attributes are ``gene transcript``."""
    lines = []
    for row in rows:
        *columns, genes = row.split(None, 5)
        gene, _, transcript = genes.partition(" ")
        lines.append(_line(name, " ".join([*columns, f'gene_id "{gene}"; transcript_id "{transcript}";'])))
    return "".join(lines)


def _line(name: str, row: str) -> str:
    feature, start, end, strand, phase, attributes = row.split(None, 5)
    return "\t".join((name, "test", feature, start, end, ".", strand, phase, attributes)) + "\n"
