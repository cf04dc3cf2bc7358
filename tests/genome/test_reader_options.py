"""What a user may ask of the reader: gaps, renaming, and which records to read."""

import pytest
from genome_helpers import fasta
from hypothesis import example, given
from hypothesis import strategies as st
from reader_helpers import GENOME as RECORDS
from reader_helpers import blocks_of, read, read_noted, refused

from genoctx.errors import InputError, UsageError
from genoctx.genome.names import match_names
from genoctx.genome.reader import ReadOptions, Selection, read_records

PLAIN = {**RECORDS, "chrM": "TTAcg"}


@pytest.fixture(params=[3, 17, 1 << 20])
def path(request, tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta(RECORDS, width=7))
    with blocks_of(request.param):
        yield tmp_path / "g.fa"


def test_gaps_take_one_of_three_values():
    with pytest.raises(UsageError, match="gaps = 'keep'"):
        ReadOptions(gaps="keep")  # type: ignore[arg-type]


# names that are taken


def names(text: bytes, path) -> list[str]:
    path.write_bytes(text)
    return list(read(path, rename=True))


def test_renaming_counts_up_and_jumps_over_names_that_are_taken(tmp_path):
    text = b">a\nA\n>a.2\nA\n>a\nA\n>b\nA\n>a\nA\n>b\nA\n>a.2\nA\n"
    assert names(text, tmp_path / "g.fa") == ["a", "a.2", "a.3", "b", "a.4", "b.2", "a.2.2"]


def test_a_real_name_never_means_another_record(tmp_path):
    error = refused(tmp_path, b">a\nA\n>a\nC\n>a.2\nG\n", rename=True)
    assert "line 5: the name 'a.2' was given to a renamed record already" in error.message
    assert "line 3" in error.message


def test_renaming_is_noted_with_its_number(tmp_path):
    (tmp_path / "g.fa").write_bytes(b">a\nA\n" * 1_200)
    records, (note,) = read_noted(tmp_path / "g.fa", rename=True)
    assert len(records) == 1_200
    assert note.startswith("1,199 records whose name was taken were renamed: 'a' in line 3 is 'a.2'")
    assert note.count("'a'") == 5


def test_renaming_goes_on_in_the_next_file(tmp_path):
    seen: dict[str, str] = {}
    found = []
    for name in ("x.fa", "y.fa"):
        (tmp_path / name).write_bytes(b">a\nA\n>b\nA\n>a\nA\n")
        pieces = read_records(tmp_path / name, seen=seen, options=ReadOptions(rename=True))
        found += dict.fromkeys(piece.contig for piece in pieces)
    assert found == ["a", "b", "a.2", "a.3", "b.2", "a.4"]
    assert list(seen) == found


def test_records_in_a_row_with_one_name_stay_apart(tmp_path):
    (tmp_path / "g.fa").write_bytes(b">a\nACGT\n>a\n>a\nGG\n")
    assert read(tmp_path / "g.fa", rename=True) == {"a": "ACGT", "a.2": "", "a.3": "GG"}


# which records


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"contigs": ("chr2",)}, ["chr2"]),
        ({"contigs": ("chrM", "chr1")}, ["chr1", "chrM"]),
        ({"contigs": ("chr?",)}, ["chr1", "chr2", "chrM"]),
        ({"contigs": ("chr[0-9]", "HLA*")}, ["chr1", "chr2", "HLA*01:01"]),
        ({"contigs": ("HLA*01:01",)}, ["HLA*01:01"]),
        ({"skip": ("chrM",)}, ["chr1", "chr2", "HLA*01:01"]),
        ({"skip": ("*",)}, []),
        ({"contigs": ("chr*",), "skip": ("chrM", "*2")}, ["chr1"]),
        ({"contigs": ("chr1",), "skip": ("chr1",)}, []),
    ],
)
def test_records_are_chosen_by_name_or_wildcard(path, options, kept):
    assert read(path, **options) == {name: PLAIN[name] for name in kept}


@pytest.mark.parametrize("what", ["contigs", "skip"])
def test_a_name_that_no_record_has_is_an_error_with_a_suggestion(path, what):
    with pytest.raises(InputError, match=f"{what} 2: no record is called '2'") as caught:
        read(path, **{what: ("chr1", "2")})
    assert caught.value.hint == "the input calls it 'chr2'"
    with pytest.raises(InputError, match="no record is called 'scaffold\\*'") as caught:
        read(path, **{what: ("scaffold*",)})
    assert caught.value.hint == "the input has chr1, chr2, chrM, HLA*01:01"


def test_a_record_that_is_left_out_may_be_broken(tmp_path):
    data = b">a\nACGT\n>junk\nAC-!\n>b\nGG\n>junk\nAC\n"
    (tmp_path / "g.fa").write_bytes(data)
    assert read(tmp_path / "g.fa", skip=("junk",)) == {"a": "ACGT", "b": "GG"}
    assert "line 4" in refused(tmp_path, data).message
    assert "'>' inside" in refused(tmp_path, b">junk\nA>b\nAC\n", skip=("junk",)).message


def test_an_exact_name_that_comes_after_its_wildcard_matched_is_an_error(tmp_path):
    data = fasta({"HLA-A*01:01": "AC", "HLA*01:01": "GT"})
    error = refused(tmp_path, data, contigs=("HLA*01:01",))
    assert "'HLA*01:01' is the name of a contig" in error.message
    assert "HLA[*]01:01" in error.hint
    assert read(tmp_path / "g.fa", contigs=("HLA[*]01:01",)) == {"HLA*01:01": "GT"}


short = st.text(alphabet="ab*?[]", min_size=1, max_size=3)


@given(st.lists(short, unique=True, max_size=6), st.lists(short, max_size=3))
@example(["a*", "ab"], ["a*"])
@example(["ab", "a*"], ["a*", "?b"])
def test_streamed_matching_means_what_match_names_means(found, patterns):
    selection = Selection(ReadOptions(contigs=tuple(patterns)))
    try:
        kept = [name for name in found if selection.choose(name) is not None]
        selection.require_used()
    except InputError:
        kept = None
    try:
        expected = match_names(found, patterns, "contigs") if patterns else found
    except InputError:
        expected = None
    # streaming may refuse what only the whole list of names can decide, but never choose otherwise
    assert kept == expected or (kept is None and any(name in patterns for name in found))
