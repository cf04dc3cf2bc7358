"""Annotations against bases: real ones fit, shifted ones and those of other sequences do not."""

import gzip

import pytest
from genome_helpers import GENOMES
from region_helpers import Board, gff

from genoctx.errors import InputError
from genoctx.genome import fit as fit_module
from genoctx.genome.genbank_features import Feature, Part

HUMAN = {
    # introns between exons of one gene; share GT..AG, GC..AG
    "human_hg19_chr3_42M": ("chr3", 150, 0.967, 0.007),
    "human_hg19_chr4_103M": ("chr4", 146, 0.952, 0.007),
    "human_hg19_chr5_124M": ("chr5", 40, 0.950, 0.000),
    "human_hs37_chrX_1-6000000": ("X", 218, 0.950, 0.014),
}


def sequences(name: str) -> dict[str, str]:
    records = gzip.decompress((GENOMES / name).read_bytes()).decode().split(">")[1:]
    split = [record.split("\n") for record in records]
    return {lines[0].split()[0]: "".join(lines[1:]) for lines in split}


def rows(name: str) -> list[list[str]]:
    data = (GENOMES / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    return [line.split("\t") for line in text.split("\n") if line and not line.startswith("#")]


def shifted(table: list[list[str]], start: int, end: int, columns: tuple[int, int]) -> str:
    moved = [list(row) for row in table if row[2] != "region"]
    for row in moved:
        row[columns[0]] = str(max(int(row[columns[0]]) + start, 1))
        row[columns[1]] = str(int(row[columns[1]]) + end)
    return "\n".join("\t".join(row) for row in moved) + "\n"


@pytest.mark.parametrize("name", HUMAN)
def test_human_exons_fit(tmp_path, name):
    contig, introns, gt_ag, gc_ag = HUMAN[name]
    board = Board(tmp_path, sequences(f"{name}.fa.gz"))
    path = str(GENOMES / f"{name}.exons.bed")
    signs = board.paint_files(f"{path}=exon")[contig]
    assert set(signs) == {"-", "i", "e"}
    ((found, fit),) = board.painted.fits
    assert found == path
    assert (fit.introns, round(fit.gt_ag, 3), round(fit.gc_ag, 3)) == (introns, gt_ag, gc_ag)
    assert fit.coding == 0


def test_exons_of_another_chromosome_do_not_fit(tmp_path):
    board = Board(tmp_path, sequences("human_hg19_chr3_42M.fa.gz"))
    text = shifted(rows("human_hg19_chr4_103M.exons.bed"), 0, 0, (1, 2)).replace("chr4", "chr3")
    with pytest.raises(
        InputError, match=r"does not fit these sequences: only 2\.0% of 146 introns"
    ) as caught:
        board.paint(text, made="=exon")
    assert "90 % or more are expected" in caught.value.message
    assert "assembly" in caught.value.hint and "class in column 4" in caught.value.hint
    # as intervals they are not compared
    assert set(board.paint(text, made="=repeat")["chr3"]) == {".", "r"}


@pytest.mark.parametrize(
    ("start", "end", "advice"),
    [
        (1, 0, "began one base earlier"),
        (-1, 0, "began one base later"),
        (0, 1, "ended one base earlier"),
        (1, 1, "began one base earlier and ended one base earlier"),
        (-1, -1, "began one base later and ended one base later"),
    ],
)
def test_coordinates_that_are_off_by_one(tmp_path, start, end, advice):
    board = Board(tmp_path, sequences("human_hg19_chr3_42M.fa.gz"))
    text = shifted(rows("human_hg19_chr3_42M.exons.bed"), start, end, (1, 2))
    with pytest.raises(
        InputError, match=r"is off by one base: only 0.*97.3% would if its features"
    ) as caught:
        board.paint(text, made="=exon")
    assert caught.value.message.endswith(advice)
    assert "count from 1" in caught.value.hint


def test_genes_without_introns_are_judged_by_their_codons(tmp_path):
    board = Board(tmp_path, sequences("ecoli_k12_mg1655.fna.gz"))
    name = "ecoli_k12_mg1655.predicted.gff3.gz"
    signs = board.paint_files(str(GENOMES / name))["K-12-MG1655"]
    assert set(signs) == set("-123")
    ((_, fit),) = board.painted.fits
    assert (fit.introns, fit.coding, fit.stops) == (0, 4314, 1.0)
    assert round(fit.starts * 4314) == 4313
    assert "99.9% with start, 100.0% with stop codon" in fit.describe()
    for start, end, advice in (
        (-1, 0, "began one base later"),
        (1, 1, "began one base earlier and ended one"),
    ):
        with pytest.raises(InputError, match=f"off by one base: of .* coding parts only .*{advice}"):
            board.paint(shifted(rows(name), start, end, (3, 4)))
    with pytest.raises(InputError, match=r"does not fit these sequences: of 4,294 coding parts only 8"):
        board.paint(shifted(rows(name)[10:-10], 100, 100, (3, 4)))


def test_a_coding_part_may_leave_its_stop_codon_out(tmp_path):
    board = Board(tmp_path, sequences("ecoli_k12_mg1655.fna.gz"))
    kept = rows("ecoli_k12_mg1655.predicted.gff3.gz")
    for row in kept:
        low, high = (3, 0) if row[6] == "-" else (0, 3)
        row[3], row[4] = str(int(row[3]) + low), str(int(row[4]) - high)
    board.paint("\n".join("\t".join(row) for row in kept) + "\n")
    assert board.painted.fits[0][1].stops == 1.0


def test_gtf_with_another_name_of_the_chromosome(tmp_path):
    board = Board(tmp_path, sequences("vertebrates_orthologous_8sp.fa.gz"))
    path = GENOMES / "vertebrates_orthologous_8sp.hg38.gtf.gz"
    with pytest.raises(InputError, match=r"the store has hg38\.chr16") as caught:
        board.paint_files(str(path))
    assert "chr16 = hg38.chr16" in caught.value.hint
    text = gzip.decompress(path.read_bytes()).decode().replace("chr16\t", "hg38.chr16\t")
    signs = board.paint(text)
    assert set(signs["hg38.chr16"]) == set("-inu123") and set(signs["mm10.chr17"]) == {"."}
    ((_, fit),) = board.painted.fits
    assert (fit.introns, round(fit.gt_ag, 3), round(fit.gc_ag, 3)) == (89, 0.989, 0.011)
    assert (fit.coding, fit.starts, fit.stops) == (11, 1.0, 1.0)


def test_yeast(tmp_path):
    board = Board(tmp_path, sequences("yeast_r64_chrI.fna.gz"))
    board.paint_files(str(GENOMES / "yeast_r64_chrI.gff3.gz"))
    ((_, fit),) = board.painted.fits
    assert (fit.introns, fit.gt_ag, fit.coding, fit.starts, fit.stops) == (3, 1.0, 94, 1.0, 1.0)
    assert fit.describe() == (
        "3 introns: 100.0% GT..AG, 0.0% GC..AG; 94 coding parts: 100.0% with start, 100.0% with stop codon"
    )


INTRON = "GT" + "C" * 20 + "AG"
GENES = 12


def genes(gene: str, intron: str, reverse: bool = False) -> tuple[str, list[str]]:
    """Bases and rows of genes with one intron each: ATG CCC | CCC TAA."""
    unit = "CC" + gene[:6] + intron + gene[6:] + "CC"
    if reverse:
        unit = unit[::-1].translate(str.maketrans("ACGT", "TGCA"))
    sign = "-" if reverse else "+"
    lines = []
    for number in range(GENES):
        at = number * len(unit) + 3
        for start, end in ((at, at + 5), (at + 6 + len(intron), at + 11 + len(intron))):
            lines.append(f"CDS {start} {end} {sign} 0 ID=p{number}")
    return unit * GENES, lines


@pytest.mark.parametrize("reverse", [False, True])
def test_introns_on_both_strands(tmp_path, reverse):
    bases, lines = genes("ATGCCCCCCTAA", INTRON, reverse)
    board = Board(tmp_path, {"c": bases})
    board.paint(gff(*lines))
    fit = board.painted.fits[0][1]
    assert (fit.introns, fit.gt_ag, fit.coding, fit.starts, fit.stops) == (GENES, 1.0, GENES, 1.0, 1.0)


def test_coding_parts_speak_for_introns_of_another_kind(tmp_path):
    bases, lines = genes("ATGCCCCCCTAA", "GTGCG" + "C" * 20 + "AC")
    board = Board(tmp_path, {"c": bases})
    board.paint(gff(*lines))
    assert "few of its introns" in board.painted.warnings[0]
    assert "12 introns: 0.0% GT..AG" in board.painted.warnings[0]
    bases, lines = genes("CCCCCCCCCCCC", "GTGCG" + "C" * 20 + "AC")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"only 0\.0% of 12 introns"):
        Board(tmp_path / "b", {"c": bases}).paint(gff(*lines))


def test_gc_ag_counts(tmp_path):
    bases, lines = genes("CCCCCCCCCCCC", "GC" + "C" * 20 + "AG")
    board = Board(tmp_path, {"c": bases})
    board.paint(gff(*lines))
    assert board.painted.fits[0][1].gc_ag == 1.0


def test_few_introns_prove_nothing(tmp_path):
    bases, lines = genes("CCCCCCCCCCCC", "C" * 24)
    board = Board(tmp_path, {"c": bases})
    board.paint(gff(*lines[: 2 * (fit_module.LEAST - 1)]))
    with pytest.raises(InputError):
        board.paint(gff(*lines[: 2 * fit_module.LEAST]))


def test_introns_of_trna_and_partial_coding_parts_do_not_count(tmp_path):
    bases, lines = genes("CCCCCCCCCCCC", "C" * 24)
    board = Board(tmp_path, {"c": bases})
    trnas = []
    for number in range(GENES):
        first, second = (line.split() for line in lines[2 * number : 2 * number + 2])
        trnas += [
            f"tRNA {first[1]} {second[2]} + . ID=t{number}",
            f"exon {first[1]} {first[2]} + . Parent=t{number}",
            f"exon {second[1]} {second[2]} + . Parent=t{number}",
        ]
    board.paint(gff(*trnas))
    assert board.painted.fits == ()
    single = [f"CDS {n * 40 + 3} {n * 40 + 8} + {{}} ID=p{n}{{}}" for n in range(GENES)]
    board.paint(gff(*(row.format(0, ";partial=true") for row in single)))
    assert board.painted.fits == ()
    board.paint(gff(*(row.format(1, "") for row in single)))
    assert board.painted.fits == ()
    with pytest.raises(InputError, match="12 coding parts"):
        board.paint(gff(*(row.format(0, "") for row in single)))


def test_many_introns_are_sampled_evenly(tmp_path, monkeypatch):
    bases, lines = genes("ATGCCCCCCTAA", INTRON)
    monkeypatch.setattr(fit_module, "_SAMPLE", 10)
    board = Board(tmp_path, {"c": bases})
    board.paint(gff(*lines))
    fit = board.painted.fits[0][1]
    assert (fit.introns, fit.gt_ag, fit.starts) == (6, 1.0, 1.0)


def test_features_of_genbank_records_are_compared_too(tmp_path):
    bases = "CCCCCC" * 30
    features = [Feature("c", "CDS", (Part(n, n + 9, 1, 0),), "", False, False, False) for n in range(20)]
    with pytest.raises(InputError, match="the GenBank annotation does not fit"):
        Board(tmp_path, {"c": bases}).paint(features=features)
