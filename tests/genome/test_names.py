"""Names of contigs in two spellings: never guessed, always told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genoctx.errors import InputError
from genoctx.genome.names import match_names, natural_key, require_contigs, suggest
from genoctx.genome.spelling import counterparts

UCSC = [f"chr{n}" for n in [*range(1, 23), "X", "Y", "M"]]
ENSEMBL = [str(n) for n in [*range(1, 23), "X", "Y", "MT"]]


def complaint(found, names, where="exons.bed"):
    with pytest.raises(InputError) as caught:
        require_contigs(found, names, where)
    return caught.value


def test_names_that_are_there_are_no_error():
    assert require_contigs([], UCSC, "x.bed") is None
    assert require_contigs(iter(["chr2", "chrX", "chr2"]), UCSC, "x.bed") is None


def test_both_sides_are_listed_and_shortened():
    error = complaint(ENSEMBL, UCSC)
    assert error.message == (
        "exons.bed: 25 of 25 names are no contig: 1, 2, 3, 4, 5, 6, 7, 8, ... (25 in all); "
        "the store has chr1, chr2, chr3, chr4, chr5, chr6, chr7, chr8, ... (25 in all)"
    )
    assert error.hint.startswith("they would match as 1 = chr1, 2 = chr2, ")
    assert "(25 in all)" in error.hint
    one = complaint(["7"], UCSC, "exons.bed, line 3")
    assert one.message.startswith("exons.bed, line 3: no contig is called '7'; the store has chr1, ")
    assert "7 = chr7" in one.hint


def test_a_command_is_offered_only_where_it_is_right_for_every_line():
    adds, removes = "sed '/^#/!s/^/chr/' FILE", "sed 's/^chr//' FILE"
    assert adds in complaint(ENSEMBL[:-1], UCSC).hint
    assert removes in complaint(UCSC[:-1], ENSEMBL).hint
    assert "sed" not in complaint(ENSEMBL, UCSC).hint  # MT is chrM
    assert "sed" not in complaint(["1", "chr2"], UCSC).hint  # chr2 is right already


def test_what_has_no_counterpart_is_named():
    error = complaint(["1", "HLA-A", "chr2"], UCSC)
    assert "2 of 3 names are no contig: 1, HLA-A" in error.message
    assert "1 = chr1" in error.hint
    assert "remove what this genome does not have (HLA-A)" in error.hint
    assert complaint(["scaffold_9"], UCSC).hint == "does the file belong to this genome assembly?"


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("chr1", ["1", "2"], "1"),
        ("1", ["chr1", "chr2"], "chr1"),
        ("CHR1", ["chr1", "chr10"], "chr1"),
        ("chrm", ["1", "MT"], "MT"),
        ("MT", ["chr1", "chrM"], "chrM"),
        ("x", ["chrX"], "chrX"),
        ("NC_001416", ["NC_001416.1", "NC_001133.9"], "NC_001416.1"),
        ("NC_001416.1", ["NC_001416"], "NC_001416"),
        ("NC_001416.1", ["gi|9626243|ref|NC_001416.1|"], "gi|9626243|ref|NC_001416.1|"),
        ("gi|9626243|ref|NC_001416.1|", ["nc_001416.1"], "nc_001416.1"),
        ("chr16", ["hg38.chr16", "mm10.chr17"], "hg38.chr16"),
        ("16", ["hg38.chr16", "mm10.chr17"], "hg38.chr16"),
        # not the same sequence, or not clear which
        ("NC_001416.2", ["NC_001416.1"], None),
        ("NC_001416", ["NC_001416.1", "NC_001416.2"], None),
        ("chr9", ["NC_001133.9"], None),
        ("chr16", ["hg38.chr16", "hg19.chr16"], None),
        ("x", ["X", "chrX"], "X"),
        ("1", ["11", "chr11"], None),
        ("ref", ["gi|1|ref|A.1|"], None),
    ],
)
def test_spellings(name, names, expected):
    assert counterparts([name], names) == ({name: expected} if expected else {})


@given(st.lists(st.text(alphabet="chrCHR12XxMmT.|_", min_size=1, max_size=8), unique=True, max_size=12))
def test_a_counterpart_is_always_a_contig_and_one_that_is_there_is_itself(names):
    wanted, contigs = names[::2], names[1::2]
    pairs = counterparts(wanted, contigs)
    assert set(pairs) <= set(wanted)
    assert set(pairs.values()) <= set(contigs)
    missing = set(wanted) - set(contigs)
    if missing:
        assert complaint(wanted, contigs).hint
    for name in wanted:
        assert suggest(name, contigs)


def test_the_natural_order():
    names = ["X", "chr10", "chr2", "scaffold_2.1", "chr1_random", "chr1", "scaffold_10.1", "CHR3", "", "7"]
    assert sorted(names, key=natural_key) == [
        "", "7", "chr1", "chr1_random", "chr2", "CHR3", "chr10", "scaffold_2.1", "scaffold_10.1", "X",
    ]  # fmt: skip
    assert sorted(["9" * 5000, "10"], key=natural_key)[0] == "10"


@given(st.permutations(["a1", "A1", "a01", "a", "1", "01", "a1b", "٣", "²", "a²"]))
def test_the_natural_order_does_not_depend_on_the_order_before(names):
    assert sorted(names, key=natural_key) == ["01", "1", "a", "A1", "a01", "a1", "a1b", "a²", "²", "٣"]


def test_a_wrong_name_among_very_many_is_answered_without_comparing_all():
    names = [f"scaffold_{i}" for i in range(200_000)]
    assert "(200,000 in all)" in suggest("scafold_7", names)
    assert suggest("SCAFFOLD_7", names) == "the store calls it 'scaffold_7'"
    with pytest.raises(InputError, match="no contig is called 'scafold_7'"):
        match_names(names, ["scafold_7"], "--contigs")
