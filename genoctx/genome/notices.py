"""What ``ingest`` has to tell about a genome: not wrong, but good to know before training on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from genoctx.genome.builder import Built
from genoctx.genome.manifest import Contig
from genoctx.genome.twins import Twins, copies, near_twins

_ALL_LOWER = 0.95
_SHOWN = 5

_LEAK = "what is held out in one would be trained on in the other; --skip leaves contigs out"


def notices(built: Built) -> Iterator[str]:
    """Sentences about records without bases, U, lower case and contigs that are copies of each other."""
    if built.empty:
        yield f"{len(built.empty):,} records without bases were skipped: {_listed(built.empty)}"
    uracils = sum(contig.uracil_count for contig in built.contigs)
    if uracils:
        yield f"{uracils:,} U were read as T"
    yield from _lower_case(built.contigs)
    yield from _equal(copies(built.contigs))
    yield from _nearly_equal(near_twins(built.contigs, built.anchors))


def _lower_case(contigs: Sequence[Contig]) -> Iterator[str]:
    bases = sum(contig.length for contig in contigs)
    share = sum(round(contig.softmask_fraction * contig.length) for contig in contigs) / bases
    if share > _ALL_LOWER:
        yield f"{100 * share:.1f} % of the bases are lower case: that is a way of writing, not a repeat mask"
        return
    lower = [contig for contig in contigs if contig.softmask_fraction > _ALL_LOWER]
    if lower:
        yield (
            f"{len(lower):,} of {len(contigs):,} contigs ({sum(c.length for c in lower):,} bases) are more than "
            f"{100 * _ALL_LOWER:.0f} % lower case, which may be a way of writing instead of a repeat mask: "
            f"{_listed(contig.name for contig in lower)}"
        )


def _equal(groups: Sequence[Sequence[Contig]]) -> Iterator[str]:
    if groups:
        extra = sum(len(group) - 1 for group in groups)
        shown = _listed(" = ".join(contig.name for contig in group[:_SHOWN]) for group in groups)
        yield f"{extra:,} contigs have the same bases as another ({shown}): {_LEAK}"


def _nearly_equal(pairs: Sequence[Twins]) -> Iterator[str]:
    if pairs:
        names = {pair.second.name for pair in pairs}  # of n haplotypes, n - 1 are too many
        shown = _listed(
            f"{pair.first.name} and {pair.second.name}, about {100 * pair.identity:.1f} %" for pair in pairs
        )
        yield f"{len(names):,} contigs are nearly identical to another or a part of it ({shown}): {_LEAK}"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:_SHOWN]) + (", ..." if len(every) > _SHOWN else "")
