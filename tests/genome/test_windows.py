from dataclasses import replace

import numpy as np
import pytest
from genome_helpers import GENOMES, fasta
from hypothesis import given, settings
from hypothesis import strategies as st

from genoctx.errors import InputError, UsageError
from genoctx.genome.store import ingest
from genoctx.genome.windows import (
    WindowTable,
    check_store,
    cut,
    format_table,
    parse_size,
    read_table,
    write_table,
)


def make_store(folder, records):
    (folder / "g.fa").write_bytes(fasta(records))
    return ingest(folder / "g.fa", folder / "store", force=True)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path, {"a": "ACGT" * 10 + "AC", "b": "N" * 10 + "GC" * 10, "c": "ACGTACG"})


@pytest.fixture(scope="module")
def human(tmp_path_factory):
    names = ("human_hg19_chr3_42M.fa.gz", "human_hg19_chr5_124M.fa.gz", "human_hs37_chrX_1-6000000.fa.gz")
    return ingest([GENOMES / name for name in names], tmp_path_factory.mktemp("human") / "store")


def places(table):
    return [(w.contig, w.start, w.end, w.split) for w in table.windows]


def losses(dropped):
    return [(d.contig, d.start, d.end, d.reason) for d in dropped]


def test_windows_of_human_dna(human):
    table, dropped = cut(human, context=parse_size("1M"), holdout="chr5", max_n=0.5)
    assert places(table) == [
        ("chr3", 0, 1048576, "train"),
        ("chr5", 0, 1048576, "holdout"),
        *[("X", i << 20, (i + 1) << 20, "train") for i in range(5)],
    ]
    assert losses(dropped) == [
        ("chr3", 1048576, 2000001, "tail"),
        ("chr5", 1048576, 2000001, "tail"),
        ("X", 5242880, 6000000, "tail"),
    ]
    n = [int((human.codes(w.contig, w.start, w.end) == 4).sum()) for w in table.windows]
    assert [w.n_fraction for w in table.windows] == [round(count / 2**20, 6) for count in n]
    assert sum(n) + int((human.codes("X", 5242880, 6000000) == 4).sum()) == 360_000


def test_n_is_counted_and_limited(human):
    loose, _ = cut(human, context=65536, holdout="none", max_n=1.0, contigs=["X"])
    tight, dropped = cut(human, context=65536, holdout="none", max_n=0.25, contigs=["X"])
    assert loose.windows[0].n_fraction == round(60_000 / 65536, 6)
    by_hand = [w for w in loose.windows if (human.codes("X", w.start, w.end) == 4).sum() <= 16384]
    assert list(tight.windows) == by_hand
    assert 0 < len(tight.windows) < len(loose.windows)
    lost = sum(d.bases for d in dropped if d.reason == "more than max-n N")
    assert lost == 65536 * (len(loose.windows) - len(tight.windows))
    assert tight.header["lost_to_n"] == len(loose.windows) - len(tight.windows)
    assert loose.header["lost_to_n"] == 0


def test_reasons_and_coordinates(store):
    table, dropped = cut(store, context=8, holdout="none", max_n=0.25)
    assert places(table)[:5] == [("a", i, i + 8, "train") for i in (0, 8, 16, 24, 32)]
    assert places(table)[5:] == [("b", 8, 16, "train"), ("b", 16, 24, "train")]
    assert losses(dropped) == [
        ("a", 40, 42, "tail"),
        ("b", 0, 8, "more than max-n N"),
        ("b", 24, 30, "tail"),
        ("c", 0, 7, "shorter than the context"),
    ]
    window = table.windows[5]
    assert (window.name, window.strand, window.gc, window.n_fraction) == ("b:9-16", "+", 1.0, 0.25)


def test_stride_shorter_and_longer_than_the_context(store):
    table, dropped = cut(store, context=8, stride=4, holdout="b", contigs=["a", "b"], max_n=1)
    assert [w.start for w in table.split("train")] == list(range(0, 36, 4))
    assert [w.start for w in table.split("holdout")] == [0, 8, 16]
    table, dropped = cut(store, context=8, stride=12, holdout="none", contigs=["a"])
    assert [w.start for w in table.windows] == [0, 12, 24]
    assert losses(dropped) == [
        ("a", 8, 12, "between windows"),
        ("a", 20, 24, "between windows"),
        ("a", 32, 42, "tail"),
    ]


def test_overlapping_windows_with_n_lose_only_what_none_covers(tmp_path):
    store = make_store(tmp_path, {"a": "A" * 10 + "N" * 8 + "A" * 10})
    table, dropped = cut(store, context=8, stride=4, holdout="none", max_n=0.25)
    assert [w.start for w in table.windows] == [0, 4, 16, 20]
    assert losses(dropped) == [("a", 12, 16, "more than max-n N")]


def test_guard_between_the_splits(store, tmp_path):
    (tmp_path / "h.bed").write_text("a\t16\t26\n")
    table, dropped = cut(store, context=8, holdout=str(tmp_path / "h.bed"), guard=3, contigs=["a"])
    assert places(table) == [("a", 0, 8, "train"), ("a", 16, 24, "holdout"), ("a", 29, 37, "train")]
    assert losses(dropped) == [
        ("a", 8, 13, "tail"),
        ("a", 13, 16, "guard gap"),
        ("a", 24, 26, "tail"),
        ("a", 26, 29, "guard gap"),
        ("a", 37, 42, "tail"),
    ]


@pytest.mark.parametrize(
    "wrong", [{"context": 1}, {"context": 0}, {"stride": 0}, {"max_n": 1.5}, {"max_n": -1}]
)
def test_impossible_arguments(store, wrong):
    with pytest.raises(UsageError):
        cut(store, **{"context": 8, "holdout": "b", **wrong})


def test_max_n_that_is_no_number(store):
    with pytest.raises(UsageError, match="not a fraction"):
        cut(store, context=8, holdout="b", max_n=float("nan"))
    with pytest.raises(UsageError, match="impossible"):
        cut(store, context=8, holdout="b", guard=-1)


def test_no_window_at_all_says_why(store, tmp_path):
    with pytest.raises(InputError, match="longest contig, a, has 42, 1,048,534 too few") as caught:
        cut(store, context=1 << 20, holdout="b")
    assert "--context of at most 42bp, such as 32" in caught.value.hint
    (tmp_path / "h.bed").write_text("a\t0\t10\n")
    with pytest.raises(InputError, match="one split, a:18-42, has 25, 5 too few") as caught:
        cut(store, context=30, holdout=str(tmp_path / "h.bed"), guard=7, contigs=["a"])
    assert "--guard" in caught.value.hint
    with pytest.raises(InputError, match="too many N"):
        cut(store, context=10, holdout="none", max_n=0.0, contigs=["b"], stride=100)
    with pytest.raises(InputError, match="--contigs: no contig is called 'z'"):
        cut(store, context=8, holdout="none", contigs=["z"])


def test_a_genome_just_short_of_the_context_is_told_by_how_much(tmp_path):
    store = make_store(tmp_path, {"trachomatis": "ACGTC" * 208_503 + "ACGT"})
    with pytest.raises(
        InputError, match="longest contig, trachomatis, has 1,042,519, 6,057 too few"
    ) as caught:
        cut(store, context=parse_size("1M"), holdout="none")
    assert caught.value.hint == "take a --context of at most 1042519bp, such as 512k"
    assert len(cut(store, context=parse_size("1042519bp"), holdout="none")[0].windows) == 1


@pytest.mark.parametrize("holdout", ["none", "chr2,X", "chr1*", "0.3", "h.bed"])
def test_the_order_of_the_contigs_changes_nothing(tmp_path, monkeypatch, holdout):
    monkeypatch.chdir(tmp_path)
    bases = ("ACGTTGCAAC" * 7 + "NNNN") * 3
    lengths = {"chr10": 150, "X": 90, "chr2": 222, "chr1": 100, "chrM": 16, "CHR2": 60, "chr02": 50, "2": 40}
    records = {name: bases[:length] for name, length in lengths.items()}
    (tmp_path / "h.bed").write_text("chr10\t30\t90\nX\t0\t20\nchr2\t100\t130\n")
    seen = []
    for order in (list(records), sorted(records), sorted(records, reverse=True)):
        # one file per contig, in this order
        paths = []
        for name in order:
            paths.append(tmp_path / f"{name}.fa")
            paths[-1].write_bytes(fasta({name: records[name]}))
        store = ingest(paths, tmp_path / "store", force=True)
        table, dropped = cut(store, context=10, stride=4, holdout=holdout, guard=3, seed=2, max_n=0.2)
        seen.append((table.windows, dropped))
        found = list(dict.fromkeys(window.contig for window in table.windows))
        assert found == [
            c for c in ("2", "chr1", "CHR2", "chr02", "chr2", "chr10", "chrM", "X") if c in found
        ]
        for contig in found:
            starts = [window.start for window in table.windows if window.contig == contig]
            assert starts == sorted(starts)
    assert seen[0] == seen[1] == seen[2]


@given(st.data())
@settings(max_examples=60)
def test_every_base_is_in_one_split_or_accounted_for(tmp_path_factory, data):
    draw = data.draw
    text = st.text(alphabet="ACGTN", min_size=1, max_size=150)
    records = draw(st.dictionaries(st.sampled_from("abc"), text, min_size=1))
    folder = tmp_path_factory.mktemp("cut")
    store = make_store(folder, records)
    context, stride, guard = draw(st.integers(2, 30)), draw(st.integers(1, 50)), draw(st.integers(0, 20))
    name = draw(st.sampled_from(sorted(records)))
    start = draw(st.integers(0, len(records[name]) - 1))
    end = draw(st.integers(start + 1, len(records[name])))
    (folder / "h.bed").write_text(f"{name}\t{start}\t{end}\n")
    holdout = draw(st.sampled_from(["none", name, "0.3", str(folder / "h.bed")]))
    max_n = draw(st.sampled_from([0.0, 0.3, 1.0]))
    try:
        table, dropped = cut(
            store, context=context, stride=stride, holdout=holdout, guard=guard, max_n=max_n, seed=3
        )
    except InputError:
        return
    for contig, bases in records.items():
        splits: list[set[str]] = [set() for _ in bases]
        times_held = np.zeros(len(bases), dtype=int)
        for window in table.windows:
            if window.contig == contig:
                assert window.end - window.start == context
                part = bases[window.start : window.end]
                assert part.count("N") <= max_n * context
                assert window.n_fraction == round(part.count("N") / context, 6)
                for at in range(window.start, window.end):
                    splits[at].add(window.split)
                if window.split == "holdout":
                    times_held[window.start : window.end] += 1
        assert times_held.max(initial=0) <= 1
        assert all(len(found) <= 1 for found in splits)
        lost = np.zeros(len(bases), dtype=int)
        for part in dropped:
            if part.contig == contig:
                lost[part.start : part.end] += 1
        assert [len(found) for found in splits] == [1 - n for n in lost]
        if holdout == str(folder / "h.bed") and contig == name:
            near = range(max(0, start - guard), min(len(bases), end + guard))
            assert all("train" not in splits[at] for at in near)
            assert all(splits[at] != {"holdout"} or start <= at < end for at in range(len(bases)))
    write_table(table, folder / "t.bed")
    again = read_table(folder / "t.bed")
    assert (again.windows, again.header) == (table.windows, table.header)
    check_store(again, store)


# the file


def test_the_table_is_bed(store, tmp_path):
    table, _ = cut(store, context=8, holdout="b", guard=2, seed=5, max_n=0.25)
    write_table(table, tmp_path / "t.bed")
    lines = (tmp_path / "t.bed").read_text().splitlines()
    assert [line.split("\t") for line in lines[:12]] == [
        ["#kind", "genoctx-windows"],
        ["#schema", "2"],
        ["#store", str(store.path)],
        ["#store_digest", store.digest],
        ["#context", "8"],
        ["#stride", "8"],
        ["#guard", "2"],
        ["#holdout", "b"],
        ["#max_n", "0.25"],
        ["#seed", "5"],
        ["#lost_to_n", "1"],
        ["#genoctx", table.header["genoctx"]],
    ]
    assert lines[12] == "#chrom\tstart\tend\tname\tscore\tstrand\tsplit\tn_fraction\tleak_fraction"
    assert lines[13] == "a\t0\t8\ta:1-8\t500\t+\ttrain\t0.0\t."
    assert lines[-1] == "b\t16\t24\tb:17-24\t1000\t+\tholdout\t0.0\t."
    assert read_table(tmp_path / "t.bed").path == tmp_path / "t.bed"


def test_writing_replaces_in_one_step_or_not_at_all(store, tmp_path, monkeypatch):
    table, _ = cut(store, context=8, holdout="b")
    write_table(table, tmp_path / "t.bed")
    before = (tmp_path / "t.bed").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_table(WindowTable(table.windows[:1], table.header), tmp_path / "t.bed")
    assert (tmp_path / "t.bed").read_bytes() == before
    assert not list(tmp_path.glob(".t.bed*"))


def test_writing_into_a_missing_folder(store, tmp_path):
    table, _ = cut(store, context=8, holdout="b")
    with pytest.raises(InputError, match="there is no folder") as caught:
        write_table(table, tmp_path / "no" / "t.bed")
    assert "mkdir" in caught.value.hint


def test_a_header_value_cannot_break_the_table(store, tmp_path):
    table, _ = cut(store, context=8, holdout="b")
    table.header["store"] = "a\tb\nc\rd\udcff"
    write_table(table, tmp_path / "t.bed")
    again = read_table(tmp_path / "t.bed")
    assert again.header["store"] == "a b c d\\udcff"
    assert again.windows == table.windows


def broken(tmp_path, text):
    path = tmp_path / "broken.bed"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert caught.value.hint
    assert str(path) in caught.value.message
    return caught.value.message


ROW = ["a", "0", "8", "a:1-8", "500", "+", "train", "0.0", "."]


@pytest.mark.parametrize(
    ("column", "value", "word"),
    [
        (0, "", "is empty"),
        (1, "x", "whole numbers"),
        (1, "-1", "whole numbers"),
        (1, "8", "empty"),
        (3, "", "is empty"),
        (4, "1001", "score"),
        (4, "high", "score"),
        (4, "nan", "score"),
        (5, ".", "strand '.'"),
        (6, "", "is empty"),
        (7, "1.5", "n_fraction"),
        (7, "-0.1", "n_fraction"),
        (8, "1.01", "leak_fraction"),
        (8, "nan", "leak_fraction"),
        (8, "", "leak_fraction"),
    ],
)
def test_a_bad_row_is_named(store, tmp_path, column, value, word):
    top = format_table(cut(store, context=8, holdout="b")[0]).split("a\t0\t8")[0]
    row = [*ROW[:column], value, *ROW[column + 1 :]]
    message = broken(tmp_path, top + "\t".join(row) + "\n")
    assert word in message
    assert "line 14" in message


def test_other_files_are_not_window_tables(store, tmp_path):
    text = format_table(cut(store, context=8, holdout="b")[0])
    assert "not a window table" in broken(tmp_path, "a\t0\t8\ta:1-8\t500\t+\ttrain\t0.0\n")
    assert "not a window table" in broken(tmp_path, "")
    assert "3 columns" in broken(tmp_path, text + "a\t0\t8\n")
    for other in ("1", "3"):
        edited = text.replace("#schema\t2", f"#schema\t{other}").replace("\t.\n", "\n")
        assert f"has schema {other}, but this genoctx reads schema 2" in broken(tmp_path, edited)
    assert "leak_share is 'low', not a number" in broken(tmp_path, "#leak_share\tlow\n" + text)
    assert "context is 'long', not a number" in broken(
        tmp_path, text.replace("#context\t8", "#context\tlong")
    )
    assert "no header line #store_digest" in broken(tmp_path, text.replace("#store_digest", "#sum"))
    assert "is that of line 14" in broken(tmp_path, text + "a\t0\t8\ta:1-8\t500\t+\ttrain\t0.0\t.\n")
    with pytest.raises(InputError, match="cannot read"):
        read_table(tmp_path / "missing.bed")


def test_an_edited_table_keeps_own_splits_and_extra_columns(store, tmp_path):
    text = format_table(cut(store, context=8, holdout="b")[0])
    (tmp_path / "t.bed").write_text(text + "\na\t3\t9\tmine\t0\t-\ttest\t0\t0.01\textra\n")
    window = read_table(tmp_path / "t.bed").split("test")[0]
    assert (window.start, window.end, window.strand, window.gc) == (3, 9, "-", 0.0)
    assert window.leak_fraction == 0.01
    assert read_table(tmp_path / "t.bed").split("nothing") == ()


@pytest.mark.parametrize(
    ("start", "end", "split", "shared"),
    [
        (0, 8, "holdout", 8),
        (7, 9, "holdout", 1),
        (1, 3, "holdout", 2),
        (8, 9, "holdout", 0),
        (0, 8, "test", 0),
    ],
)
def test_a_training_window_cannot_be_held_out_as_well(store, tmp_path, start, end, split, shared):
    top = format_table(cut(store, context=8, holdout="b")[0]).split("a\t0\t8")[0]
    mine = ["a", str(start), str(end), "mine", "0", "+", split, "0", "."]
    rows = [ROW, ["a", "0", "4", "short", *ROW[4:]], mine]
    text = top + "".join("\t".join(row) + "\n" for row in rows)
    if shared:
        message = broken(tmp_path, text)
        assert f"share {shared} bases of a" in message
        assert "mine (holdout)" in message
    else:
        (tmp_path / "t.bed").write_text(text)
        assert len(read_table(tmp_path / "t.bed").windows) == 3


def test_a_table_belongs_to_one_store(store, tmp_path):
    table, _ = cut(store, context=8, holdout="b")
    check_store(table, store)
    (tmp_path / "other").mkdir()
    other = make_store(tmp_path / "other", {"a": "ACGT" * 20})
    with pytest.raises(InputError) as caught:
        check_store(table, other)
    assert store.digest in caught.value.message
    assert other.digest in caught.value.message
    outside = replace(table.windows[0], start=40, end=48)
    with pytest.raises(InputError, match="ends at 48, but a has 42 bases"):
        check_store(WindowTable((outside,), table.header), store)
    with pytest.raises(InputError, match="no contig 'z'"):
        check_store(WindowTable((replace(outside, contig="z"),), table.header), store)


def test_sizes():
    assert [parse_size(s) for s in ("512k", "1M", "1000000bp", 4096)] == [524288, 1048576, 1000000, 4096]
