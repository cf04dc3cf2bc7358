"""What a base can be in a genome, as one number: the classes of ``regions.u8``."""

from __future__ import annotations

from genoctx.errors import UsageError

CLASSES: tuple[str, ...] = (
    "unannotated",
    "intergenic",
    "intron",
    "repeat",
    "ncRNA",
    "exon",
    "UTR",
    "CDS3",
    "CDS2",
    "CDS1",
)
"""The class of each number. A base that is several things has the last of them here."""

UNANNOTATED, INTERGENIC, INTRON, REPEAT, NCRNA, EXON, UTR, CDS3, CDS2, CDS1 = range(len(CLASSES))


def class_number(name: str, where: str) -> int:
    """The number of the class called ``name``. Raises UsageError; ``where`` says what asked for it."""
    if name in CLASSES:
        return CLASSES.index(name)
    if name.upper() == "CDS":
        raise UsageError(
            f"{where}: CDS is three classes, CDS1, CDS2 and CDS3, and these lines do not tell the reading frame",
            "give a GFF3, a GTF or a BED12 with the coding part in columns 7 and 8",
        )
    raise UsageError(f"{where}: there is no class {name!r}", f"the classes are {', '.join(CLASSES)}")
