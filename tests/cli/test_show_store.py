"""``genoctx show STORE``: contigs, totals, sources, warnings, and the bases of an interval."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest

from genoctx.cli import app
from genoctx.cli.console import Console
from genoctx.cli.show_store import show, totals
from genoctx.genome.store import GenomeStore, ingest

TEXT = ">a[1]\nACGTNNRAcg\n>b\nGGGG\n>empty\n>HLA:1-2\nACU\n"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of three short contigs, one with a name like an interval."""
    (tmp_path / "g.fa").write_text(TEXT)
    ingest(tmp_path / "g.fa", tmp_path / "g")
    return tmp_path / "g"


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """A store with a plain BED of repeats over the first half of its first contig."""
    (tmp_path / "g.fa").write_text(">a\n" + "ACGT" * 25 + "\n>b\nGGGG\n")
    (tmp_path / "r.bed").write_text("a\t0\t50\n")
    ingest(tmp_path / "g.fa", tmp_path / "g", annotations=[f"{tmp_path / 'r.bed'}=repeat"])
    return tmp_path / "g"


def shown(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert app.run(["show", *args]) == 0
    out, err = capsys.readouterr()
    return out, err


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert app.run(["show", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "hint: " in err
    return err


def test_a_pipe_gets_numbers(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown([str(store)], capsys)
    head, *rows = out.splitlines()
    assert head == "#contig\tlength\tgc\tn\tn_runs\tiupac\tsoftmask"
    assert rows[0].split("\t") == ["a[1]", "10", str(4 / 7), "2", "1", "R:1", "0.2"]
    assert rows[1] == "b\t4\t1.0\t0\t0\t-\t0.0"
    digest = GenomeStore.open(store).digest
    sha = hashlib.sha256(TEXT.encode()).hexdigest()
    assert err.splitlines() == [
        f"g: 3 contigs, 17 bases, digest {digest}",
        "total: GC 64.3%, N 11.8% in 1 runs, IUPAC R:1, soft-masked 11.8%",
        f"source: g.fa (plain, {len(TEXT)} bytes, sha256 {sha[:12]})",
        "warning: 1 records without bases were skipped: empty",
        "warning: 1 U were read as T",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_shares(annotated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, err = Terminal(), io.StringIO()
    show(Console(stdout=out, stderr=err, color="never"), str(annotated), None, None)
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[0][-2:] == ["repeat", "unannotated"]
    assert rows[2] == ["a", "100", "50.0%", "0.0%", "0", "-", "0.0%", "50.0%", "50.0%"]
    assert "repeat 48.1%, unannotated 51.9%" in err.getvalue()
    assert "annotation: r.bed (plain bed=repeat, 7 bytes, sha256 " in err.getvalue()


def test_a_terminal_gets_the_longest_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "g.fa").write_text("".join(f">s{n}\n{'A' * (n % 50 + 1)}\n" for n in range(100)))
    ingest(tmp_path / "g.fa", tmp_path / "g")
    for head, rows in ((None, 40), (3, 3)):
        out, err = Terminal(), io.StringIO()
        show(Console(stdout=out, stderr=err), str(tmp_path / "g"), None, head)
        lines = out.getvalue().splitlines()[2:]
        assert len(lines) == rows
        assert [line.split()[0] for line in lines[:3]] == ["s49", "s99", "s48"]
        assert f"... and {100 - rows} more" in err.getvalue()


def test_a_pipe_gets_all_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.fa").write_text("".join(f">s{n}\nACGT\n" for n in range(100)))
    ingest(tmp_path / "g.fa", tmp_path / "g")
    out, err = shown([str(tmp_path / "g")], capsys)
    assert [row.split("\t")[0] for row in out.splitlines()[1:]] == [f"s{n}" for n in range(100)]
    assert "more" not in err
    assert len(shown([str(tmp_path / "g"), "--head", "7"], capsys)[0].splitlines()) == 8


def test_as_data(annotated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(["store", str(annotated), "--json"], capsys)[0])
    assert found["what"] == "store"
    assert found["contigs"][0]["region_counts"] == {"unannotated": 50, "repeat": 50}
    assert found["total"]["classes"] == {"repeat": 50, "unannotated": 54}
    assert found["annotations"][0]["path"] == "r.bed"
    assert len(found["digest"]) == len(found["sources"][0]["sha256"]) == 64


def test_totals_are_those_of_the_letters(store: Path) -> None:
    assert totals(GenomeStore.open(store).contigs) == {
        "gc": 9 / 14,
        "n_count": 2,
        "n_runs": 1,
        "iupac_counts": {"R": 1},
        "softmask_fraction": 2 / 17,
        "classes": {},
    }


# bases of an interval


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ("a[1]:1-4", ">a[1]:1-4\nACGT\n"),
        ("a[1]:5-10", ">a[1]:5-10\nNNRAcg\n"),
        ("a[1]", ">a[1]:1-10\nACGTNNRAcg\n"),
        ("b:4-4", ">b:4-4\nG\n"),
        ("HLA:1-2", ">HLA:1-2:1-3\nACT\n"),
        ("HLA:1-2:2-3", ">HLA:1-2:2-3\nCT\n"),
        ("b:3", ">b:3-4\nGG\n"),
        ("a[1]:9-", ">a[1]:9-10\ncg\n"),
    ],
)
def test_bases_are_fasta(store: Path, interval: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown([str(store), interval], capsys) == (text, "")
    assert shown(["store", str(store), interval], capsys) == (text, "")


def test_bases_as_data(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown([str(store), "a[1]:8-10", "--json"], capsys)[0])
    assert found == {"contig": "a[1]", "start": 7, "end": 10, "sequence": "Acg"}


def test_long_intervals_are_whole(
    tmp_path: Path, genomes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed is read again: the same digest and mask, whatever the block."""
    store = ingest(genomes / "yeast_r64_chrI.fna.gz", tmp_path / "g")
    monkeypatch.setattr("genoctx.cli.show_store._BLOCK", 80 * 7)
    out, _ = shown([str(store.path), "NC_001133.9"], capsys)
    assert {len(line) for line in out.splitlines()[1:-1]} == {80}
    (tmp_path / "again.fa").write_text(out.replace("NC_001133.9:1-230218", "NC_001133.9"))
    again = ingest(tmp_path / "again.fa", tmp_path / "again")
    assert again.digest == store.digest
    assert again.manifest.softmask_sha256 == store.manifest.softmask_sha256


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ("a[1]:5-11", "a[1]:5-11 reaches past the end of a[1], which has 10 bases"),
        ("b:5-5", "which has 4 bases"),
        ("b:0-3", "the region b:0-3 is empty"),
        ("b:3-2", "the region b:3-2 is empty"),
        ("B:1-2", "has no contig 'B'"),
        ("c", "has no contig 'c'"),
    ],
)
def test_intervals_that_are_not_there(
    store: Path, interval: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused([str(store), interval], capsys)


def test_only_a_store_has_intervals_and_a_head(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "belong to a store, not to preset" in refused(["preset", "nano", "a:1-2"], capsys)
    assert "belong to a store, not to presets" in refused(["presets", "--head", "3"], capsys)
    assert "cannot show 'nowhere'" in refused(["nowhere", "a:1-2"], capsys)
    assert "not a genome store" in refused(["store", "nowhere", "a:1-2"], capsys)
