"""Painting against a slow oracle that decides base by base, from models that never were text."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from region_helpers import SIGNS, Board

import genoctx.genome.gene_models as gene_models
import genoctx.genome.painting as painting
from genoctx.genome.annotation_file import AnnotationLines
from genoctx.genome.spans import Spans, gaps, group, hulls, union

LENGTHS = {"a": 60, "b": 45}


@dataclass(frozen=True)
class Transcript:
    contig: str
    strand: str
    exons: tuple[tuple[int, int], ...]
    coding: tuple[int, int] | None
    """First and last of the transcript's own bases that are coding, half-open, in reading direction."""

    def bases(self) -> list[int]:
        """Positions of the exons' bases in reading direction."""
        forward = [p for start, end in self.exons for p in range(start, end)]
        return forward if self.strand == "+" else forward[::-1]

    def coding_bases(self) -> list[int]:
        return self.bases()[slice(*self.coding)] if self.coding else []


@st.composite
def transcripts(draw):
    contig = draw(st.sampled_from(sorted(LENGTHS)))
    count = draw(st.integers(1, 4))
    cuts = draw(
        st.lists(st.integers(0, LENGTHS[contig]), min_size=2 * count, max_size=2 * count, unique=True)
    )
    cuts.sort()
    exons = tuple(zip(cuts[::2], cuts[1::2], strict=True))
    size = sum(end - start for start, end in exons)
    coding = None
    if size > 3 and draw(st.booleans()):
        first = draw(st.integers(0, size - 4))
        coding = (first, draw(st.integers(first + 4, size)))
    return Transcript(contig, draw(st.sampled_from("+-")), exons, coding)


genes = st.lists(transcripts(), min_size=1, max_size=3)
intervals = st.lists(
    st.tuples(st.sampled_from(sorted(LENGTHS)), st.integers(0, 40), st.integers(1, 5)), max_size=3
)


def oracle(models: list[Transcript], repeats: list[tuple[str, int, int]]) -> dict[str, str]:
    """Each base has the class of the highest precedence among all that are said of it."""
    order = list(SIGNS.values())
    regions = {}
    for contig, length in LENGTHS.items():
        mine = [m for m in models if m.contig == contig]
        said: list[set[str]] = [{"-" if mine else "."} for _ in range(length)]
        for model in mine:
            for p in range(model.exons[0][0], model.exons[-1][1]):
                said[p].add("i")
            for p in model.bases():
                said[p].add("u" if model.coding else "n")
            for number, p in enumerate(model.coding_bases()):
                said[p].add("123"[number % 3])
        for name, start, size in repeats:
            if name == contig:
                for p in range(start, start + size):
                    said[p].add("r")
        regions[contig] = "".join(max(each, key=order.index) for each in said)
    return regions


def parts(positions: list[int]) -> list[tuple[int, int, int]]:
    """Start, end (half-open) and number of bases read before, for each stretch of consecutive positions."""
    found: list[list[int]] = []
    for number, p in enumerate(positions):
        if found and (p == found[-1][1] or p == found[-1][0] - 1):
            found[-1][0], found[-1][1] = min(found[-1][0], p), max(found[-1][1], p + 1)
        else:
            found.append([p, p + 1, number])
    return [tuple(each) for each in found]


def split_at_introns(model: Transcript, positions: list[int]) -> list[tuple[int, int, int]]:
    """The same, cut at the ends of exons too: two exons may touch."""
    cut = []
    for start, end, before in parts(positions):
        inside = [(max(s, start), min(e, end)) for s, e in model.exons if s < end and e > start]
        for s, e in inside if model.strand == "+" else inside[::-1]:
            cut.append((s, e, before))
            before += e - s
    return cut


def as_gff3(models, repeats, with_phase: bool = True, with_exons: bool = True) -> list[str]:
    lines = []
    for number, m in enumerate(models):
        kind = "mRNA" if m.coding else "lnc_RNA"
        top = f"{m.contig}\tx\t{{}}\t{{}}\t{{}}\t.\t{m.strand}\t{{}}\t{{}}"
        lines.append(top.format(kind, m.exons[0][0] + 1, m.exons[-1][1], ".", f"ID=t{number}"))
        lines += [top.format("exon", s + 1, e, ".", f"Parent=t{number}") for s, e in m.exons]
        for s, e, before in split_at_introns(m, m.coding_bases()):
            phase = -before % 3 if with_phase else "."
            lines.append(top.format("CDS", s + 1, e, phase, f"ID=p{number};Parent=t{number}"))
    lines += [f"{c}\tx\tdispersed_repeat\t{s + 1}\t{s + n}\t.\t.\t.\tID=r{s}" for c, s, n in repeats]
    return lines


def as_gtf(models, repeats, stop_phase: bool) -> list[str]:
    lines = []
    for number, m in enumerate(models):
        top = (
            f'{m.contig}\tx\t{{}}\t{{}}\t{{}}\t.\t{m.strand}\t{{}}\tgene_id "g{number}"; '
            f'transcript_id "t{number}";'
        )
        lines += [top.format("exon", s + 1, e, ".") for s, e in m.exons]
        coding = m.coding_bases()
        for s, e, before in split_at_introns(m, coding[:-3]):
            lines.append(top.format("CDS", s + 1, e, -before % 3))
        for s, e, before in split_at_introns(m, coding[-3:]):
            # the reading frame of a stop codon is its own only where the coding part has whole codons
            lines.append(top.format("stop_codon", s + 1, e, -before % 3 if stop_phase else "."))
        if not m.coding:
            lines.append(top.format("tRNA", m.exons[0][0] + 1, m.exons[-1][1], "."))
    lines += [f"{c}\tx\trepeat_region\t{s + 1}\t{s + n}\t.\t.\t." for c, s, n in repeats]
    return lines


def as_bed12(models) -> list[str]:
    lines = []
    for m in models:
        start, end = m.exons[0][0], m.exons[-1][1]
        coding = m.coding_bases()
        thick = (min(coding), max(coding) + 1) if coding else (start, start)
        sizes = ",".join(str(e - s) for s, e in m.exons)
        starts = ",".join(str(s - start) for s, _ in m.exons)
        lines.append(
            f"{m.contig}\t{start}\t{end}\tt\t0\t{m.strand}\t{thick[0]}\t{thick[1]}\t0\t{len(m.exons)}\t{sizes},\t{starts},"
        )
    return lines


def painted(lines: list[str], *more: str) -> dict[str, str]:
    folder = Path(tempfile.mkdtemp())
    try:
        board = Board(folder, LENGTHS)
        return board.paint("\n".join(lines) + "\n", *more)
    finally:
        shutil.rmtree(folder)


@given(genes, intervals, st.booleans(), st.randoms())
def test_gff3_equals_the_oracle_in_any_order_of_lines(models, repeats, with_phase, random):
    lines = as_gff3(models, repeats, with_phase)
    expected = oracle(models, repeats)
    if not any(m.coding for m in models):
        lines.append("a\tx\tCDS\t1\t3\t.\t+\t0\tID=only")
        expected = None
    random.shuffle(lines)
    found = painted(["##gff-version 3", *lines])
    if expected is None:
        expected = oracle([*models, Transcript("a", "+", ((0, 3),), (0, 3))], repeats)
    assert found == expected


@given(genes, intervals, st.randoms())
def test_gtf_equals_the_oracle_in_any_order_of_lines(models, repeats, random):
    whole = []
    for m in models:
        if m.coding:  # a stop codon comes after whole codons
            size = (m.coding[1] - m.coding[0]) // 3 * 3
            m = Transcript(
                m.contig, m.strand, m.exons, (m.coding[0], m.coding[0] + size) if size > 3 else None
            )
        whole.append(m)
    coding = Transcript("b", "-", ((0, 9),), (0, 9))
    whole.append(coding)
    lines = as_gtf(whole, repeats, random.random() < 0.5)
    random.shuffle(lines)
    assert painted(lines) == oracle(whole, repeats)


@given(genes, st.randoms())
def test_bed12_equals_the_oracle_in_any_order_of_lines(models, random):
    models = [*models, Transcript("b", "+", ((0, 4),), (0, 4))]
    lines = as_bed12(models)
    random.shuffle(lines)
    assert painted(lines) == oracle(models, [])


@given(genes, intervals, st.integers(1, 40))
@settings(max_examples=50)
def test_tiles_and_files_do_not_show(models, repeats, tile):
    models = [*models, Transcript("b", "+", ((0, 4),), (0, 4))]
    whole, painting._TILE = painting._TILE, tile
    try:
        text = "".join(f"{c}\t{s}\t{s + n}\trepeat\n" for c, s, n in repeats)
        assert painted(as_bed12(models), *([text] if text else [])) == oracle(models, repeats)
    finally:
        painting._TILE = whole


def test_batches_do_not_show(monkeypatch):
    models = [
        Transcript(name, strand, ((3, 20), (25, 40)), coding)
        for name in LENGTHS
        for strand in "+-"
        for coding in ((1, 30), None)
    ]
    for size in (1, 5, 1000):
        monkeypatch.setattr(gene_models, "_BATCH", size)
        assert painted(as_bed12(models)) == oracle(models, [])


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 3)), max_size=12)


@given(pairs)
def test_spans_equal_sets_of_positions(rows):
    starts = np.array([s for s, _, _ in rows], dtype=np.int64)
    ends = starts + np.array([n for _, n, _ in rows], dtype=np.int64)
    spans = union([Spans(starts[:3], ends[:3]), Spans(starts[3:], ends[3:])])
    covered = {p for s, e in zip(starts, ends, strict=True) for p in range(s, e)}
    assert {p for s, e in zip(*spans, strict=True) for p in range(s, e)} == covered
    assert all(e < s for e, s in zip(spans.ends, spans.starts[1:], strict=False))
    keys = np.array([k for _, _, k in rows], dtype=np.int64)
    some = np.flatnonzero(ends > starts)
    groups = group(starts, (keys,), some)
    found, after = gaps(Spans(starts, ends), groups)
    for key in set(keys[some].tolist()):
        mine = {p for i in some if keys[i] == key for p in range(starts[i], ends[i])}
        between = {p for s, e, i in zip(*found, after, strict=True) if keys[i] == key for p in range(s, e)}
        assert between == set(range(min(mine), max(mine) + 1)) - mine
    hull = hulls(Spans(starts, ends), groups)
    assert len(hull) == len(set(keys[some].tolist()))


def test_the_dialect_is_told_without_a_header(tmp_path):
    from genoctx.genome.source import Source

    model = Transcript("a", "+", ((0, 9),), (0, 6))
    for lines, dialect in (
        (as_gff3([model], []), "gff3"),
        (as_gtf([model], [], True), "gtf"),
        (as_bed12([model]), "bed"),
        (["a\tx\tgene\t1\t9\t.\t+\t.\tg1", *as_gtf([model], [], True)], "gtf"),
        (["a\tx\tCDS\t1\t9\t.\t+\t0\t.", "track x", "", *as_gff3([model], [])], "gff3"),
        (["track name=x", "browser position a:1-9", "# a\tb", "a 1 2"], "bed"),
    ):
        path = tmp_path / "a"
        path.write_text("\n".join(lines))
        assert AnnotationLines(Source(path)).dialect == dialect
