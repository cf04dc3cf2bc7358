import pytest
from region_helpers import Board, gff, gtf

from genoctx.errors import InputError


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path, {"c": 30})


def test_gtf_of_ensembl_and_gencode(board):
    text = "#!genome-build X\n" + gtf(
        "gene 3 28 + . G",
        "transcript 3 28 + . G T",
        "exon 3 10 + . G T",
        "CDS 6 10 + 0 G T",
        "start_codon 6 8 + 0 G T",
        "exon 15 20 + . G T",
        "CDS 15 17 + 1 G T",
        "stop_codon 18 20 + 0 G T",
        "exon 24 28 + . G T",
        "five_prime_utr 3 5 + . G T",
        "three_prime_utr 24 28 + . G T",
    )
    assert board.paint(text)["c"] == "--uuu12312iiii312123iiiuuuuu--"


def test_gtf_of_ucsc_and_augustus(board):
    rows = (
        "exon 3 10 - . T T",
        "CDS 9 10 - 0 T T",
        "stop_codon 6 8 - . T T",
        "exon 15 16 - . T T",
        "CDS 15 16 - 0 T T",
    )
    bare = "c\tAUGUSTUS\tgene\t3\t16\t1\t-\t.\tT\nc\tAUGUSTUS\ttranscript\t3\t16\t1\t-\t.\tT.t1\n"
    expected = "--uuu32121iiii21--------------"
    assert board.paint(gtf(*rows))["c"] == expected
    assert board.paint(bare + gtf(*rows))["c"] == expected


def test_gtf_with_utr_rows_instead_of_exons(board):
    text = gtf("five_prime_utr 3 5 + . G T", "CDS 6 11 + 0 G T", "3UTR 20 22 + . G T")
    assert board.paint(text)["c"][:23] == "--uuu123123iiiiiiiiuuu-"


def test_a_stop_codon_across_an_intron(board):
    rows = (
        "CDS 2 4 + 0 G T",
        "stop_codon 5 5 + {} G T",
        "stop_codon 9 10 + {} G T",
        "exon 2 5 + . G T",
        "exon 9 10 + . G T",
    )
    for phases in ("..", "02"):
        text = gtf(*(row.format(phases[i - 1]) if i in (1, 2) else row for i, row in enumerate(rows)))
        assert board.paint(text)["c"][:11] == "-1231iii23-"


def test_gtf_transcripts_of_one_name_in_two_genes(board):
    rows = (
        "exon 1 3 + . G1 unknown_transcript_1",
        "exon 20 22 + . G2 unknown_transcript_1",
        "CDS 28 30 + 0 G3 x",
    )
    assert board.paint(gtf(*rows))["c"] == "nnn" + "-" * 16 + "nnn" + "-" * 5 + "123"


def test_gtf_of_ncbi_for_genes_without_transcripts(board):
    text = gtf(
        "gene 2 7 + . G ",
        "CDS 2 4 + 0 G unassigned_transcript_1",
        "stop_codon 5 7 + 0 G unassigned_transcript_1",
    )
    text += gtf("gene 11 14 + . Q ").replace('transcript_id ""', 'transcript_id ""; pseudo "true"')
    assert board.paint(text)["c"] == "-123123---nnnn" + "-" * 16


def test_prokaryotic_gff_with_gene_and_cds(board):
    text = gff(
        "gene 2 10 + . ID=gene-a;gene_biotype=protein_coding",
        "CDS 2 10 + 0 ID=cds-a;Parent=gene-a",
        "gene 12 14 - . ID=gene-r;gene_biotype=tRNA",
        "tRNA 12 14 - . ID=rna-r;Parent=gene-r",
        "exon 12 14 - . ID=exon-r;Parent=rna-r",
    )
    assert board.paint(text)["c"] == "-123123123-nnn" + "-" * 16
    assert board.painted.warnings == ()


def test_multiple_parents(board):
    text = gff(
        "mRNA 1 9 + . ID=a",
        "mRNA 1 20 + . ID=b",
        "exon 1 3 + . Parent=a,b",
        "exon 7 9 + . Parent=a",
        "exon 18 20 + . Parent=b",
        "CDS 1 3 + 0 Parent=a,b",
    )
    assert board.paint(text)["c"][:21] == "123iiiuuuiiiiiiiiuuu-"


def test_trans_spliced_parts_have_no_intron_between(board):
    text = gff("CDS 1 3 + 0 ID=p;exception=trans-splicing", "CDS 20 22 + 0 ID=p;exception=trans-splicing")
    assert board.paint(text)["c"] == "123" + "-" * 16 + "123" + "-" * 8


@pytest.mark.parametrize("strand", "+-")
def test_a_feature_across_the_origin_of_a_circle(board, strand):
    text = gff(
        f"CDS 27 35 {strand} 0 ID=p;Parent=g",
        f"gene 26 37 {strand} . ID=g",
        "region 1 30 + . ID=c:1..30;Is_circular=true",
    )
    read = "123123123" if strand == "+" else "321321321"
    assert board.paint(text)["c"] == read[4:] + "uu" + "-" * 18 + "u" + read[:4]
    text = gff(f"CDS 31 33 {strand} 0 ID=p", "region 1 30 + . ID=c:1..30;Is_circular=true")
    assert board.paint(text)["c"] == read[:3] + "-" * 27


def test_a_feature_beyond_the_end_is_an_error(board):
    with pytest.raises(InputError, match=r"line 3: the CDS ends at 31, but c has 30 bases") as caught:
        board.paint(gff("region 1 30 + . ID=c", "CDS 28 31 + 0 ID=p"))
    assert "Is_circular" in caught.value.hint
    with pytest.raises(InputError, match=r"line 3: the CDS ends at 61"):
        board.paint(gff("region 1 30 + . ID=c;Is_circular=true", "CDS 28 61 + 0 ID=p"))
    with pytest.raises(InputError, match=r"column 8|without phase"):
        board.paint(gff("region 1 30 + . ID=c;Is_circular=true", "CDS 28 33 + . ID=p"))
    many = ["gene 28 31 + . ID=g"] * 2000
    with pytest.raises(InputError, match=r"line 2: the gene ends at 31"):
        board.paint(gff(*many))
