import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genoctx.errors import InputError, UsageError
from genoctx.genome.manifest import Contig
from genoctx.genome.splits import make_split


def contigs(**lengths: int) -> list[Contig]:
    return [Contig(name, length, 0, "", 0.5, 0, 0, {}, 0.0, 0, "g.fa", 1) for name, length in lengths.items()]


def held(split) -> dict[str, list[tuple[int, int]]]:
    found = {
        name: [(i.start, i.end) for i in each if i.split == "holdout"]
        for name, each in split.intervals.items()
    }
    return {name: spans for name, spans in found.items() if spans}


GENOME = contigs(chr1=1000, chr2=500, chr10=300, X=50)


@pytest.mark.parametrize(
    ("holdout", "names"),
    [
        ("chr2", ["chr2"]),
        ("chr2,X", ["chr2", "X"]),
        (" X , chr2 ", ["chr2", "X"]),
        ("chr1*", ["chr1", "chr10"]),
        ("chr?", ["chr1", "chr2"]),
        ("X,chr1?", ["chr10", "X"]),
        ("*", ["chr1", "chr2", "chr10", "X"]),
        ("none", []),
    ],
)
def test_contigs_by_name_and_glob(holdout, names):
    split = make_split(GENOME, holdout=holdout, block=100)
    assert list(held(split)) == names
    for contig in GENOME:
        kind = "holdout" if contig.name in names else "train"
        assert [(i.start, i.end, i.split) for i in split.intervals[contig.name]] == [(0, contig.length, kind)]


def test_an_exact_name_wins_over_every_other_meaning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.bed").write_text("a*\t0\t5\n")
    odd = contigs(**{"0.5": 100, "none": 100, "b.bed": 100, "a*": 100, "ab": 100, "1": 100})
    for contig in odd:
        assert list(held(make_split(odd, holdout=contig.name, block=10))) == [contig.name]
    assert list(held(make_split(odd, holdout="a*,non?", block=10))) == ["none", "a*"]


@pytest.mark.parametrize(
    ("holdout", "hint"),
    [
        ("2", "'chr2'"),
        ("chrX", "'X'"),
        ("x", "'X'"),
        ("chr11", "chr1"),
        ("Y,chr1", "the store has chr1, chr2, chr10, X"),
    ],
)
def test_an_unknown_contig_is_never_silently_nothing(holdout, hint):
    with pytest.raises(InputError, match="no contig is called") as caught:
        make_split(GENOME, holdout=holdout, block=100)
    assert hint in caught.value.hint


@pytest.mark.parametrize("holdout", ["0.0", ".000", "0%", "100%", "250%"])
def test_impossible_fractions(holdout):
    with pytest.raises(UsageError, match="between 0 and 1"):
        make_split(GENOME, holdout=holdout, block=100)


def test_a_fraction_of_too_few_blocks():
    with pytest.raises(InputError, match="1 whole blocks of 600") as caught:
        make_split(contigs(a=1000, b=400), holdout="0.1", block=600)
    assert "--context" in caught.value.hint


# written down from the first version: a later one must not move them
FOREVER = [
    {"chr1": [(1200, 3200)], "chr2": [(2400, 3400)], "chr3": [(0, 200)], "chr4": [(0, 100)]},
    {"chr1": [(2300, 4300)], "chr2": [(1000, 2000)], "chr3": [(200, 400)], "chr4": [(300, 400)]},
]


def test_a_fraction_is_the_same_for_ever():
    many = contigs(chr1=10_000, chr2=5_050, chr3=990, chr4=400)
    assert held(make_split(many, holdout="0.2", block=100, seed=0)) == FOREVER[0]
    assert held(make_split(many, holdout="20%", block=100, seed=1)) == FOREVER[1]
    assert held(make_split(many[::-1], holdout=".2", block=100, seed=1)) == FOREVER[1]


def test_a_guard_lies_on_both_sides_and_not_at_the_ends(tmp_path):
    (tmp_path / "h.bed").write_text(
        "chr1\t0\t100\nchr1\t500\t600\nchr2\t400\t500\nchr10\t10\t20\nchr10\t50\t300\n"
    )
    split = make_split(GENOME, holdout=str(tmp_path / "h.bed"), guard=30, block=100)
    found = {name: [(i.start, i.end, i.split[0]) for i in each] for name, each in split.intervals.items()}
    assert found["chr1"] == [(0, 100, "h"), (130, 470, "t"), (500, 600, "h"), (630, 1000, "t")]
    assert split.guards["chr1"] == ((100, 130), (470, 500), (600, 630))
    assert found["chr2"] == [(0, 370, "t"), (400, 500, "h")]
    assert found["chr10"] == [(10, 20, "h"), (50, 300, "h")]
    assert split.guards["chr10"] == ((0, 10), (20, 50))
    assert (found["X"], split.guards["X"]) == ([(0, 50, "t")], ())
    assert split.bases("train") == 340 + 370 + 370 + 50


# BED


def test_bed_intervals_are_merged_and_headers_skipped(tmp_path):
    path = tmp_path / "held.bed"
    path.write_bytes(
        b"browser position chr1\r\ntrack name=x\r\n# words\r\n\r\n"
        b"chr1\t50\t80\tname\t0\t+\r\nchr1\t10\t20\r\nchr1 20 30\r\nchr1\t25\t28\r\n   \r\nX\t0\t50"
    )
    assert held(make_split(GENOME, holdout=str(path), block=100)) == {
        "chr1": [(10, 30), (50, 80)],
        "X": [(0, 50)],
    }
    packed = tmp_path / "held.bed.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert held(make_split(GENOME, holdout=str(packed), block=100)) == held(
        make_split(GENOME, holdout=str(path), block=100)
    )


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("chr1\t5", "2 columns"),
        ("1\t0\t5", "1 of 2 names are no contig: 1; the store has chr1, chr2, chr10, X"),
        ("chr1\t0\t1001", "ends at 1,001, but chr1 has 1,000"),
        ("chr1\t5\t5", "empty"),
        ("chr1\t9\t5", "empty"),
        ("chr1\t-1\t5", "whole numbers"),
        ("chr1\t1.0\t5", "whole numbers"),
        ("chr1\tstart\tend", "whole numbers"),
        ("chr1\t٣\t5", "whole numbers"),
        ("chr1\t0\t" + "9" * 5000, "whole numbers"),
        ("chr1\t1000\t1001", "ends at 1,001"),
        ("chr1\t0\t0", "empty"),
        ("chr1\t1000\t1000", "empty"),
        ("chr2\t0\t501", "ends at 501, but chr2 has 500"),
        ("chr1,0,5", "1 columns"),
    ],
)
def test_a_bad_bed_line_is_named(tmp_path, line, word):
    path = tmp_path / "h.bed"
    path.write_text(f"# first\nchr2\t0\t5\n{line}\n")
    with pytest.raises(InputError, match=word) as caught:
        make_split(GENOME, holdout=str(path), block=100)
    assert f"{path}, line 3" in caught.value.message
    assert caught.value.hint


@given(st.integers(0, 1100), st.integers(0, 1100))
def test_a_bed_interval_is_taken_as_it_is_or_refused(tmp_path_factory, start, end):
    path = tmp_path_factory.mktemp("bed") / "h.bed"
    path.write_text(f"track x\nchr1\t{start}\t{end}\n")
    if 0 <= start < end <= 1000:
        assert held(make_split(GENOME, holdout=str(path), block=100)) == {"chr1": [(start, end)]}
    else:
        with pytest.raises(InputError, match=r"line 2: the interval .*(empty|ends at)"):
            make_split(GENOME, holdout=str(path), block=100)


def test_a_bed_file_of_another_naming_is_told_how_it_would_match(tmp_path):
    path = tmp_path / "h.bed"
    path.write_text("# Ensembl\n1\t0\t5\n2\t0\t5\n1\t10\t15\n")
    with pytest.raises(InputError) as caught:
        make_split(GENOME, holdout=str(path), block=100)
    assert caught.value.message == (
        f"{path}, line 2: 2 of 2 names are no contig: 1, 2; the store has chr1, chr2, chr10, X"
    )
    assert "1 = chr1, 2 = chr2" in caught.value.hint
    assert "sed '/^#/!s/^/chr/' FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "no interval"),
        (b"# only words\n", "no interval"),
        (b"\xff\xfe\x00", "not text"),
        (gzip.compress(b"chr1\t0\t5\n" * 50)[:-4], "damaged gzip"),
        (None, "cannot read"),
    ],
)
def test_a_bad_bed_file_is_named(tmp_path, data, word):
    path = tmp_path / "h.bed"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=word):
        make_split(GENOME, holdout=str(path), block=100)


# whatever the genome

lengths = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(1, 400), min_size=1, max_size=5
)


def check_partition(genome, split, guard):
    """Intervals and guards cover each base once; train keeps its distance; holdout is not shortened."""
    for contig in genome:
        marks = [""] * contig.length
        for interval in split.intervals[contig.name]:
            for at in range(interval.start, interval.end):
                assert marks[at] == ""
                marks[at] = interval.split
        for start, end in split.guards[contig.name]:
            for at in range(start, end):
                assert marks[at] == ""
                marks[at] = "guard"
        assert "" not in marks
        where = [at for at, mark in enumerate(marks) if mark == "holdout"]
        for at, mark in enumerate(marks):
            nearest = min((abs(at - other) for other in where), default=contig.length + guard + 1)
            assert mark == ("holdout" if nearest == 0 else "guard" if nearest <= guard else "train")


@given(lengths, st.integers(1, 99), st.integers(1, 60), st.integers(0, 80), st.integers(0, 5))
def test_fractions_hold_out_whole_blocks(sizes, percent, block, guard, seed):
    genome = contigs(**sizes)
    total = sum(length // block for length in sizes.values())
    if total < 2:
        return
    split = make_split(genome, holdout=f"{percent}%", guard=guard, block=block, seed=seed)
    check_partition(genome, split, guard)
    blocks = 0
    for name, spans in held(split).items():
        assert len(spans) == 1
        start, end = spans[0]
        assert start % block == 0
        assert end == sizes[name] if sizes[name] - end < block else end % block == 0
        assert end - start >= block
        blocks += (end - start) // block
    assert blocks == min(max(1, round(percent / 100 * total)), total - 1)
    assert split == make_split(genome, holdout=f"{percent}%", guard=guard, block=block, seed=seed)


@given(lengths, st.lists(st.tuples(st.integers(0, 399), st.integers(1, 100)), min_size=1), st.integers(0, 80))
def test_bed_and_guard_partition_every_contig(tmp_path_factory, sizes, spans, guard):
    genome = contigs(**sizes)
    lines = []
    for i, (start, length) in enumerate(spans):
        name = list(sizes)[i % len(sizes)]
        start %= sizes[name]
        lines.append(f"{name}\t{start}\t{min(start + length, sizes[name])}")
    path = tmp_path_factory.mktemp("bed") / "h.bed"
    path.write_text("\n".join(lines))
    check_partition(genome, make_split(genome, holdout=str(path), guard=guard, block=10), guard)


def test_seeds_place_blocks_differently():
    genome = contigs(chr1=100_000)
    places = {str(held(make_split(genome, holdout="0.1", block=100, seed=seed))) for seed in range(20)}
    assert len(places) > 10
