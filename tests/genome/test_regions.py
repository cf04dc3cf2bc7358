import gzip
import hashlib

import numpy as np
import pytest
from genome_helpers import GENOMES, bgzip
from region_helpers import SIGNS, Board, gff

import genoctx.genome.painting as painting
from genoctx.errors import InputError, UsageError
from genoctx.genome.regions import CLASSES, REGIONS


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path, {"c": 30})


def test_classes_rise_with_precedence():
    names = "unannotated intergenic intron repeat ncRNA exon UTR CDS3 CDS2 CDS1"
    assert " ".join(CLASSES) == names


CODING = (
    "gene 3 28 + . ID=g",
    "mRNA 3 28 + . ID=t;Parent=g",
    "exon 3 10 + . Parent=t",
    "exon 15 20 + . Parent=t",
    "exon 24 28 + . Parent=t",
    "CDS 6 10 + 0 ID=p;Parent=t",
    "CDS 15 20 + 1 ID=p;Parent=t",
)


def test_a_coding_gene(board):
    assert board.paint(gff(*CODING))["c"] == "--uuu12312iiii312312iiiuuuuu--"


def test_a_coding_gene_on_the_other_strand(board):
    rows = [row.replace(" + ", " - ") for row in CODING]
    # read from the right: 20..15 has phase 1, so base 20 ends a codon; 10..6 has phase 0
    assert board.paint(gff(*rows))["c"] == "--uuu21321iiii213213iiiuuuuu--"


@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize("strand", "+-")
def test_phase_on_both_strands(board, phase, strand):
    read = ("123" * 10)[3 - phase :][:10] if phase else ("123" * 10)[:10]
    signs = board.paint(gff(f"CDS 11 20 {strand} {phase} ID=p"))["c"]
    assert signs[10:20] == (read if strand == "+" else read[::-1])
    assert signs[:10] + signs[20:] == "-" * 20


def test_a_missing_phase_is_counted_on_from_the_first_part(board):
    rows = ("CDS 2 5 {} . ID=p", "CDS 8 12 {} . ID=p", "CDS 20 21 {} . ID=p")
    assert board.paint(gff(*(row.format("+") for row in rows)))["c"][:21] == "-1231ii23123iiiiiii12"
    assert board.paint(gff(*(row.format("-") for row in rows)))["c"][:21] == "-2132ii13213iiiiiii21"


def test_where_two_coding_parts_disagree_the_lower_place_wins(board):
    first = "CDS 1 9 + 0 ID=a"
    assert board.paint(gff(first, "CDS 1 9 + 1 ID=b"))["c"][:9] == "112112112"
    assert board.paint(gff(first, "CDS 1 9 - 0 ID=b"))["c"][:9] == "121121121"


def test_noncoding_transcripts_and_pseudogenes_are_ncrna(board):
    text = gff(
        "gene 1 12 + . ID=g",
        "lnc_RNA 1 12 + . ID=t;Parent=g",
        "exon 1 3 + . Parent=t",
        "exon 10 12 + . Parent=t",
        "pseudogene 14 16 - . ID=q",
        "tRNA 18 20 . . ID=r",
        "pseudogene 22 24 - . ID=x",
        "CDS 22 24 - 0 ID=y;Parent=x;pseudo=true",
        "CDS 28 30 + 0 ID=z",
    )
    assert board.paint(text)["c"] == "nnniiiiiinnn-nnn-nnn-nnn---123"


def test_without_any_cds_in_the_file_exons_stay_exons(board):
    text = gff(
        "transcript 1 9 + . ID=t",
        "exon 1 3 + . Parent=t",
        "exon 7 9 + . Parent=t",
        "tRNA 11 12 + . ID=r",
        "exon 11 12 + . Parent=r",
        "snoRNA 20 21 + . ID=s",
    )
    assert board.paint(text)["c"] == "eeeiiieee-nn-------nn---------"


def test_a_coding_part_without_exon_rows_leaves_its_ends_to_utr(board):
    text = gff(
        "gene 3 20 + . ID=g", "mRNA 3 20 + . ID=t;Parent=g", "CDS 5 7 + 0 Parent=t", "CDS 11 13 + 0 Parent=t"
    )
    assert board.paint(text)["c"] == "--uu123iii123uuuuuuu" + "-" * 10
    assert "taken for UTR" in board.painted.warnings[0]
    assert board.paint(gff("gene 3 20 + . ID=g", "CDS 5 7 + 0 Parent=g"))["c"][:21] == "--uu123uuuuuuuuuuuuu-"


def test_utr_rows_stand_for_exons(board):
    text = gff(
        "mRNA 3 20 + . ID=t",
        "five_prime_UTR 3 6 + . Parent=t",
        "CDS 10 12 + 0 Parent=t",
        "three_prime_UTR 13 20 + . Parent=t",
    )
    assert board.paint(text)["c"][:21] == "--uuuuiii123uuuuuuuu-"


def test_a_coding_part_that_hangs_on_the_gene(board):
    text = gff(
        "gene 1 12 + . ID=g",
        "mRNA 1 12 + . ID=t;Parent=g",
        "exon 1 6 + . Parent=t",
        "exon 10 12 + . Parent=t",
        "CDS 4 6 + 0 Parent=g",
    )
    assert board.paint(text)["c"][:13] == "uuu123iiiuuu-"


def test_every_class_covers_those_below(board):
    """One class more in each step, on one base less: what shows is the last."""
    gene = [
        "mRNA 1 30 + . ID=t",
        "exon 1 1 + . Parent=t",
        "exon 30 30 + . Parent=t",
        "CDS 30 30 + 2 Parent=t",
    ]
    rows = [
        "dispersed_repeat 4 28 + . ID=r",
        "lnc_RNA 6 28 + . ID=n",
        "five_prime_UTR 8 28 + . Parent=t",
        "CDS 10 28 + 0 Parent=t",
        "CDS 13 28 + 2 Parent=t",
    ]
    assert board.paint(gff(*gene, rows[0]))["c"] == "uii" + "r" * 25 + "i2"
    assert board.paint(gff(*gene, *rows[:2]))["c"] == "uii" + "rr" + "n" * 23 + "i2"
    assert board.paint(gff(*gene, *rows[:3]))["c"] == "uii" + "rrnn" + "u" * 21 + "i2"
    assert board.paint(gff(*gene, *rows[:4]))["c"] == "uiirrnnuu" + ("123" * 7)[:19] + "i2"
    assert board.paint(gff(*gene, *rows))["c"] == "uiirrnnuu" + "123" + ("121" * 7)[:16] + "i2"


def test_contigs_without_genes_are_unannotated(tmp_path):
    board = Board(tmp_path, {"a": 5, "c": 6, "z": 3})
    signs = board.paint(gff("CDS 2 4 + 0 ID=p"), "z\t0\t1\trepeat\n")
    assert signs == {"a": ".....", "c": "-123--", "z": "r.."}
    assert board.painted.counts == (
        {"unannotated": 5},
        {"intergenic": 3, "CDS3": 1, "CDS2": 1, "CDS1": 1},
        {"unannotated": 2, "repeat": 1},
    )


def test_intervals_of_one_class_say_nothing_about_the_rest(board):
    assert board.paint("c\t3\t6\nc\t5\t9\n", made="=repeat")["c"] == "...rrrrrr" + "." * 21
    text = gff("region 1 30 . . ID=c", "match 4 6 . . ID=x", "similarity 8 9 . . ID=y")
    assert board.paint(text, made="=repeat")["c"][:10] == "...rrr.rr."


def test_intervals_that_name_their_class(board):
    text = "c 0 2 intergenic 0 +\nc 2 4 UTR\nc 4 5 CDS2\nc 3 6 repeat\nc 9 12 unannotated\n"
    assert board.paint(text)["c"] == "--uu2r" + "." * 24
    with pytest.raises(InputError, match=r"line 2: 'utr' in column 4 is no class"):
        board.paint("c 0 2 UTR\nc 2 3 utr\n")


def test_exons_of_one_name_and_strand_are_a_gene(board):
    text = "c\t1\t3\tg1\t0\t+\nc\t6\t8\tg1\t0\t+\nc\t10\t12\tg2\t0\t-\nc\t12\t14\tg1\t0\t-\nc\t20\t22\tg1\t0\t-\n"
    assert board.paint(text, made="=exon")["c"] == "-eeiiiee--eeeeiiiiiiee--------"


@pytest.mark.parametrize("text", ["c 1 3 x 0 +\nc 6 8 x 0 +\n", "c 1 3\nc 6 8\n", "c 1 3 .\nc 6 8 .\n"])
def test_exons_without_names_make_no_introns(board, text):
    assert board.paint(text, made="=exon")["c"] == ".ee...ee" + "." * 22


def test_bed12_is_a_gene_model(board):
    line = "c\t2\t28\tt\t0\t{}\t6\t19\t0\t3\t8,6,4,\t0,12,22\n"
    assert board.paint(line.format("+"))["c"] == "--uuuu1231iiii23123uiiiiuuuu--"
    assert board.paint(line.format("-"))["c"] == "--uuuu3213iiii21321uiiiiuuuu--"
    assert board.paint("c\t2\t28\tt\t0\t+\t2\t2\t0\t1\t26\t0\n")["c"] == "--" + "e" * 26 + "--"


def test_the_order_of_files_does_not_matter(board):
    one, two = gff(*CODING), "c 0 30 repeat\nc 16 18 UTR\n"
    first = board.paint(one, two)["c"]
    assert board.paint(two, one)["c"] == first
    assert first == "rruuu12312rrrr312312rrruuuuurr"


def test_stretches_take_their_part_of_the_annotation(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = Board(tmp_path / "whole", {"c": 40})
    rows = (
        "mRNA 3 38 - . ID=t",
        "exon 3 12 - . Parent=t",
        "exon 20 38 - . Parent=t",
        "CDS 5 12 - . Parent=t",
        "CDS 20 31 - . Parent=t",
    )
    signs = whole.paint(gff(*rows))["c"]
    (tmp_path / "parts").mkdir()
    parts = Board(tmp_path / "parts", {"c:11-25": 15, "x": 4, "c:26-40": 15, "c:1-9": 7})
    assert parts.paint(gff(*rows)) == {
        "c:11-25": signs[10:25],
        "x": "....",
        "c:26-40": signs[25:40],
        "c:1-9": "." * 7,  # it has not nine bases: only a name
    }


def test_tiles_join_without_a_seam(tmp_path, monkeypatch):
    rows = [*CODING, "repeat_region 1 30 + . ID=r"]
    for size in (1, 2, 3, 7, 100):
        monkeypatch.setattr(painting, "_TILE", size)
        (tmp_path / str(size)).mkdir()
        board = Board(tmp_path / str(size), {"b": 4, "c": 30, "d": 1})
        signs = board.paint(gff(*rows))
        assert signs == {"b": "....", "c": "rruuu12312rrrr312312rrruuuuurr", "d": "."}
        data = (board.folder / "store" / REGIONS).read_bytes()
        assert board.painted.sha256 == hashlib.sha256(data).hexdigest()


def test_counts_of_many_small_contigs(tmp_path):
    board = Board(tmp_path, {f"c{n}": 1 + n % 5 for n in range(500)})
    text = "".join(f"c{n}\t0\t{1 + n % 2}\trepeat\n" for n in range(500) if n % 5)
    signs = board.paint(text)
    for name, counts in zip(signs, board.painted.counts, strict=True):
        assert counts == {c: signs[name].count(s) for c, s in SIGNS.items() if s in signs[name]}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bgzip], ids=["plain", "gzip", "bgzip"])
def test_compression_and_dialect_are_told_by_content(board, pack):
    path = board.write(pack(gff(*CODING).encode()), "genes.bed")
    assert "312312" in board.paint_files(path)["c"]
    data = (board.folder / "genes.bed").read_bytes()
    (source,) = board.painted.sources
    word = {bytes: "plain", gzip.compress: "gzip", bgzip: "bgzip"}[pack]
    assert (source.path, source.format, source.bytes) == ("genes.bed", f"{word} gff3", len(data))
    assert source.sha256 == hashlib.sha256(data).hexdigest()


def test_the_class_is_part_of_the_source(board):
    board.paint("c 1 2\n", made="=repeat")
    assert board.painted.sources[0].format == "plain bed=repeat"


def test_a_file_with_an_equals_sign_in_its_name(board):
    path = board.write("c 1 2 repeat\n", "a=UTR")
    assert board.paint_files(path)["c"][:3] == ".r."
    assert board.paint_files(path + "=UTR")["c"][:3] == ".u."


@pytest.mark.parametrize(
    ("name", "match"), [("CDS", "CDS1, CDS2 and CDS3"), ("Repeat", "no class 'Repeat'"), ("", "no class ''")]
)
def test_a_class_that_is_none(board, name, match):
    with pytest.raises(UsageError, match=match):
        board.paint("c 1 2\n", made=f"={name}")


def test_names_that_are_no_contigs(tmp_path):
    board = Board(tmp_path, {"1": 9, "2": 9})
    with pytest.raises(InputError) as caught:
        board.paint("chr1 0 2 repeat\nchr2 0 2 repeat\nchrM 0 2 repeat\n")
    assert "chr1, chr2, chrM" in caught.value.message and "the store has 1, 2" in caught.value.message
    assert "chr1 = 1" in caught.value.hint
    with pytest.raises(InputError, match="the store has 1, 2"):
        board.paint(gff("CDS 1 3 + 0 ID=p", name="chr1"))
    # some names missing: sequences that were left out on purpose
    signs = board.paint("1 0 2 repeat\nchr2 0 2 repeat\n3 5 8 repeat\n3 50 80 repeat\n")
    assert signs == {"1": "rr.......", "2": "........."}
    assert (
        "3 features on 2 sequences that the store does not have were left out: chr2, 3"
        in board.painted.warnings[0]
    )
    assert "chr2 may be 2" in board.painted.warnings[0]


def test_names_written_with_percent(tmp_path):
    board = Board(tmp_path, {"gi|1": 4, "100%25": 4})
    text = gff("CDS 1 3 + 0 ID=p", name="gi%7C1") + gff("CDS 2 4 + 0 ID=p", name="100%25")
    assert board.paint(text) == {"gi|1": "123-", "100%25": "-123"}


def test_a_length_that_the_file_declares_otherwise(board):
    text = gff(*CODING) + "##sequence-region c 1 31\n##sequence-region c 5 31\n##sequence-region x 1 9\n"
    board.paint(text)
    assert "c has 31 bases there and 30 here" in board.painted.warnings[0]


def test_genes_without_parts_are_refused(board):
    with pytest.raises(InputError, match="has 2 genes, but neither exons nor coding parts"):
        board.paint(gff("gene 1 9 + . ID=a", "gene 12 19 + . ID=b"))
    assert board.paint(gff("gene 1 9 + . ID=a", "tRNA 2 4 + . Parent=a"))["c"][:6] == "-nnn--"


def test_a_file_without_anything_to_paint(board):
    with pytest.raises(InputError, match=r"only similarity \(2\), region \(1\)") as caught:
        board.paint(gff("region 1 30 + . ID=c", "similarity 2 3 + . ID=a", "similarity 2 3 + . ID=b"))
    assert "=repeat" in caught.value.hint


def test_real_gff_of_yeast_has_the_known_counts(tmp_path):
    """CDS bases counted by another hand: the union of all CDS rows."""
    text = gzip.decompress((GENOMES / "yeast_r64_chrI.fna.gz").read_bytes()).decode()
    letters = "".join(text.split("\n")[1:])
    board = Board(tmp_path, {"NC_001133.9": letters})
    path = GENOMES / "yeast_r64_chrI.gff3.gz"
    signs = board.paint_files(str(path))["NC_001133.9"]
    coding = np.zeros(len(letters), dtype=bool)
    for line in gzip.decompress(path.read_bytes()).decode().split("\n"):
        fields = line.split("\t")
        if len(fields) == 9 and fields[2] == "CDS":
            coding[int(fields[3]) - 1 : int(fields[4])] = True
    assert np.array_equal(np.isin(list(signs), list("123")), coding)
    # YAL068C: 1807..2169 on the reverse strand
    assert signs[1806:2169] == "321" * 121
    assert {name: signs.count(sign) for name, sign in SIGNS.items() if sign in signs} == board.painted.counts[
        0
    ]
