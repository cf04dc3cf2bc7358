"""Stretches of records that become contigs of their own: ``--regions``."""

import gzip

import pytest
from genome_helpers import fasta
from hypothesis import given
from hypothesis import strategies as st
from reader_helpers import GENOME as RECORDS
from reader_helpers import blocks_of, read, read_noted, refused

from genoctx.errors import InputError, UsageError
from genoctx.genome.reader import ReadOptions, Selection, read_records
from genoctx.genome.select import format_region, parse_region


@pytest.fixture(params=[3, 17, 1 << 20])
def path(request, tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta(RECORDS, width=7))
    with blocks_of(request.param):
        yield tmp_path / "g.fa"


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("chr5:1-80", ("chr5", 0, 80)),
        ("chr5:7-7", ("chr5", 6, 7)),
        ("chr5:1,000-2,000,000", ("chr5", 999, 2_000_000)),
        ("HLA*01:01:3-9", ("HLA*01:01", 2, 9)),
        ("a-b:c-d:3-9", ("a-b:c-d", 2, 9)),
        *((text, None) for text in ("chr5", "chr5:80", "chr5:80-", "chr5:-80", ":1-2", "chr5:a-b", "a:1-2x")),
        ("a:1-" + "9" * 5000, None),
    ],
)
def test_regions_are_read_as_samtools_writes_them(text, region):
    assert parse_region(text) == region
    if region and "," not in text:
        assert format_region(*region) == text


@pytest.mark.parametrize("text", ["chr5:80-1", "chr5:0-80", "chr5:0-0"])
def test_empty_regions_are_wrong_usage(text):
    with pytest.raises(UsageError, match=f"the region {text} is empty"):
        Selection(ReadOptions(regions=(text,)))


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        (("chr1:1-40",), {"chr1:1-40": RECORDS["chr1"]}),
        (("chr1:1-1", "chr1:40-40"), {"chr1:1-1": "A", "chr1:40-40": "N"}),
        (("chr2:5-30", "chr1:7-19"), {"chr1:7-19": RECORDS["chr1"][6:19], "chr2:5-30": RECORDS["chr2"][4:30]}),
        (("chr1:3-6", "chr1:3-6"), {"chr1:3-6": "GTNA"}),
        (("chr1:1-10", "chr1:11-20"), {"chr1:1-10": "ACGTN" * 2, "chr1:11-20": "ACGTN" * 2}),
        (("chrM",), {"chrM": "TTAcg"}),
        (("chrM:2-3", "HLA*01:01"), {"chrM:2-3": "TA", "HLA*01:01": "ACGTACGTTTAA"}),
        (("HLA*01:01:2-4",), {"HLA*01:01:2-4": "CGT"}),
    ],
)  # fmt: skip
def test_stretches_become_contigs(path, regions, expected):
    assert read(path, regions=regions) == expected


def test_stretches_may_overlap_and_come_one_after_the_other(path):
    regions = ("chr2:10-50", "chr2:1-20", "chr2:15-18", "chr2:20-54")
    records, notes = read_noted(path, regions=regions)
    ordered = ["chr2:1-20", "chr2:10-50", "chr2:15-18", "chr2:20-54"]
    assert list(records) == ordered
    for name, bases in records.items():
        first, last = map(int, name[5:].split("-"))
        assert bases == RECORDS["chr2"][first - 1 : last]
    assert notes == ["3 regions overlap an earlier one: shared bases are read twice"]
    contigs = [piece.contig for piece in read_records(path, options=ReadOptions(regions=regions))]
    assert [name for i, name in enumerate(contigs) if i == 0 or contigs[i - 1] != name] == ordered


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_stretches_of_a_bed_file(path, tmp_path, pack):
    bed = b"track name=x\n# note\nchr1\t0\t4\tgene\nchrM\t1\t3\r\nchr1 36 40\nchr1\t0\t4\tagain\n"
    (tmp_path / "r.bed").write_bytes(pack(bed))
    found = read(path, regions=(str(tmp_path / "r.bed"), "chr2:1-3"))
    assert found == {"chr1:1-4": "ACGT", "chr1:37-40": "CGTN", "chr2:1-3": "gga", "chrM:2-3": "TA"}


def test_u_is_counted_inside_stretches_only(path):
    pieces = list(read_records(path, options=ReadOptions(regions=("chrM:2-4",))))
    assert sum(piece.uracils for piece in pieces) == 1


def test_bases_outside_of_stretches_are_checked(tmp_path):
    assert "column 9: '!'" in refused(tmp_path, b">a\nACGTACGT!A\n", regions=("a:1-3",)).message


def test_stretches_count_what_is_left_after_gaps_are_dropped(tmp_path):
    (tmp_path / "g.fa").write_bytes(b">a\nA--C\nGT\n")
    assert read(tmp_path / "g.fa", regions=("a:2-3",), gaps="drop") == {"a:2-3": "CG"}
    assert read(tmp_path / "g.fa", regions=("a:2-4",), gaps="n") == {"a:2-4": "NNC"}


@pytest.mark.parametrize("region", ["chr1:1-41", "chr1:41-50", "chr1:1000-2000"])
def test_a_stretch_that_leaves_its_record_is_an_error_with_the_length(path, region):
    with pytest.raises(InputError, match="which has 40 bases") as caught:
        read(path, regions=("chr1:2-5", region))
    assert f"{path}, line 1 (contig chr1): the region {region} reaches beyond" in caught.value.message


def test_a_stretch_of_an_empty_record_is_an_error(tmp_path):
    assert "which has 0 bases" in refused(tmp_path, b">a\n>b\nA\n", regions=("a:1-1",)).message


@pytest.mark.parametrize(
    ("region", "contig"), [("chr9:1-5", "chr9"), ("chr2:80", "chr2:80"), ("chr", "chr"), ("2:1-3", "2")]
)
def test_a_region_of_no_record_is_an_error(path, region, contig):
    with pytest.raises(InputError) as caught:
        read(path, regions=(region, "chr1:1-3"))
    assert caught.value.message == f"regions {region}: no record is called {contig!r}"


def test_a_region_of_no_record_names_its_bed_line(path, tmp_path):
    (tmp_path / "r.bed").write_text("chr1\t0\t4\nchrZ\t0\t4\n")
    with pytest.raises(InputError, match=r"r\.bed, line 2: no record is called 'chrZ'"):
        read(path, regions=(str(tmp_path / "r.bed"),))


def test_a_bed_file_that_is_not_there(path, tmp_path):
    for missing in ("r.bed", str(tmp_path / "regions")):
        with pytest.raises(InputError, match="no such file"):
            read(path, regions=(missing,))


def test_regions_of_records_that_are_left_out_are_no_error(path):
    assert read(path, regions=("chr1:1-3", "chrM:1-2"), skip=("chrM",)) == {"chr1:1-3": "ACG"}


def test_an_exact_name_wins_over_a_stretch(tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({"a:1-2": "GGGG", "a": "ACGT"}))
    assert read(tmp_path / "g.fa", regions=("a:1-2",)) == {"a:1-2": "GGGG"}
    error = refused(tmp_path, fasta({"a": "ACGT", "a:1-2": "GGGG"}), regions=("a:1-2",))
    assert "the name of a contig and also a stretch of 'a'" in error.message


def test_a_record_whole_and_in_stretches(path):
    with pytest.raises(InputError, match="'chr1' whole and for chr1:1-3"):
        read(path, regions=("chr1", "chr1:1-3"))


def test_what_is_unused_is_judged_over_all_files(tmp_path):
    options = ReadOptions(contigs=("a", "c*"), skip=("b", "z"), regions=("a:1-2", "y:1-2"))
    selection = Selection(options)
    for name in "ab":
        (tmp_path / name).write_bytes(fasta({name: "ACGT"}))
        list(read_records(tmp_path / name, options=options, selection=selection))
    assert selection.unused() == ("c*", "z", "y:1-2")
    for name in ("c1", "z", "y"):
        selection.choose(name)
    assert selection.unused() == ()
    selection.require_used()


@given(
    st.text(alphabet="ACGTacgtUN", min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(1, 40),
)
def test_any_stretches_are_slices(tmp_path_factory, bases, spans, width, size):
    path = tmp_path_factory.mktemp("cut") / "g.fa"
    path.write_bytes(fasta({"x": "AC", "a": bases, "y": "GT"}, width))
    spans = sorted({(min(span), max(span)) for span in spans})
    regions = tuple(f"a:{first}-{last}" for first, last in spans)
    with blocks_of(size):
        if max(last for _, last in spans) > len(bases):
            with pytest.raises(InputError, match=f"which has {len(bases)} bases"):
                read(path, regions=regions)
            return
        plain = bases.replace("U", "T")
        found = read(path, regions=regions)
        pieces = list(read_records(path, options=ReadOptions(regions=regions)))
    assert found == {f"a:{first}-{last}": plain[first - 1 : last] for first, last in spans}
    assert sum(piece.uracils for piece in pieces) == sum(bases[f - 1 : e].count("U") for f, e in spans)
