"""``genoctx bench io``: the files it makes, the order of the readers, and what becomes of one that fails."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections import namedtuple
from pathlib import Path

import pytest

import genoctx.run.bench_files as bench_files
from genoctx.cli import app
from genoctx.errors import InputError, WouldNotFit
from genoctx.run.bench_files import io_files, synthetic
from genoctx.run.bench_io import READERS, IoResult, IoRound, run_io

TEXT = b">a\n" + b"ACGTTGCAAC\n" * 30 + b">b\nacgtn\n"


SYNTHETIC = "a8845e33a6fd8434efa0d28dcdb683bc6dbeb9082ca46e0456421aad439a9e6d"
"""sha256 of 3,000 bases; another one means that old figures were measured on another file."""


def quiet(_: str) -> None:
    """Says nothing."""


def test_the_synthetic_genome_is_the_same_everywhere() -> None:
    text = b"".join(synthetic(3000))
    assert hashlib.sha256(text).hexdigest() == SYNTHETIC
    assert text == b"".join(synthetic(3000))


def test_the_synthetic_genome_looks_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_files, "CONTIG", 1_500_000)
    records = b"".join(synthetic(3_700_001)).split(b">")[1:]
    heads = [record.partition(b"\n")[0] for record in records]
    assert heads == [b"chr1 synthetic", b"chr2 synthetic", b"chr3 synthetic"]
    lines = [line for record in records for line in record.split(b"\n")[1:-1]]
    assert {len(line) for line in lines} == {80, 1}
    letters = b"".join(lines)
    assert len(letters) == 3_700_001
    assert letters.count(b"N") == 30_000 and set(letters) <= set(b"ACGTacgtN")
    upper = letters.upper()
    assert abs((upper.count(b"G") + upper.count(b"C")) / len(letters) - 0.40) < 0.01
    assert abs(sum(map(letters.count, (b"a", b"c", b"g", b"t"))) / len(letters) - 0.40) < 0.03


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_the_user_in_both_forms(packed: bool, tmp_path: Path) -> None:
    given = tmp_path / "genome"  # its name does not tell the form
    given.write_bytes(gzip.compress(TEXT) if packed else TEXT)
    with io_files([given], 0, quiet) as files:
        assert files.plain[0].read_bytes() == gzip.decompress(files.gzipped[0].read_bytes()) == TEXT
        assert given in (*files.plain, *files.gzipped) and not files.synthetic
        folder = files.folder
    assert not folder.exists()
    assert os.listdir(tmp_path) == ["genome"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(TEXT)[:-9])
    for name in ("cut.gz", "missing"):
        with pytest.raises(InputError, match=name), io_files([tmp_path / name], 0, quiet):
            pytest.fail("read")


def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(bench_files.shutil, "disk_usage", lambda _: usage(10**9))
    what = "of 1,000,000,000 bases and their store need"
    with pytest.raises(WouldNotFit, match=what) as caught, io_files([], 10**9, quiet):
        pytest.fail("written")
    assert "--size" in caught.value.hint and "TMPDIR" in caught.value.hint


def test_readers_take_turns_and_agree(tmp_path: Path) -> None:
    (tmp_path / "g.fa").write_bytes(TEXT)
    said: list[str] = []
    with io_files([tmp_path / "g.fa"], 0, quiet) as files:
        results = run_io(files, 2, said.append)
        left = sorted(path.name for path in files.folder.iterdir())
    assert said == [f"round {n} of 2: {reader}, {form}" for n in (1, 2) for reader, form in READERS]
    assert left == ["0.fa.gz"]
    assert [result.failed for result in results] == [""] * len(READERS)
    assert {one.bases for result in results for one in result.rounds} == {305}
    assert all(one.seconds > 0 and one.extra_bytes >= 0 for result in results for one in result.rounds)
    assert os.listdir(tmp_path) == ["g.fa"]


def test_a_reader_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.fa").write_bytes(b">a\nACGTAC\nAC\nACGTAC\n")
    monkeypatch.setattr("genoctx.run.bench_io.find_spec", lambda name: None if name == "Bio" else name)
    with io_files([tmp_path / "g.fa"], 0, quiet) as files:
        results = {(r.reader, r.form): r for r in run_io(files, 1, quiet)}
    assert results["genoctx", "plain"].rounds[0].bases == 14
    assert "Line length of fasta file is not consistent" in results["pyfaidx", "plain"].failed
    assert results["Biopython", "gzip"].failed == "not installed"


def test_rates_are_medians_of_the_rounds() -> None:
    rounds = [IoRound(seconds, 2 * seconds, 10**6, extra) for seconds, extra in ((1, 5), (4, 9), (2, 7))]
    result = IoResult("x", "plain", rounds)
    assert result.rates == [0.25, 0.5, 1.0]
    assert (result.rate, result.cpu_rate, result.extra_bytes) == (0.5, 0.25, 9)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["bench", "io", "--size", "20kb", "--rounds", "1"]) == 0
    out, err = capsys.readouterr()
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head[:3] == ["#reader", "form", "mbp_per_s"]
    assert [tuple(row[:2]) for row in rows] == list(READERS)
    assert rows[0][head.index("of_genoctx")] == rows[3][head.index("of_genoctx")] == "1.0"
    assert "20,000 synthetic bases, 1 rounds in turn" in err


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.fa").write_bytes(b">a\nACGTAC\nAC\nACGTAC\n")
    assert app.run(["bench", "io", str(tmp_path / "g.fa"), "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["synthetic"], found["bases"], found["rounds"]) == (False, 14, 1)
    readers = {(r["reader"], r["form"]): r for r in found["readers"]}
    assert len(readers["genoctx", "gzip"]["seconds"]) == 1
    assert readers["pyfaidx", "plain"]["mbp_per_s"] is None
    assert "not consistent" in readers["pyfaidx", "plain"]["failed"]
    assert found["machine"]["cpus"] >= 1 and "numpy" in found["versions"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["io", "--chunk", "2k"], "bench io has no --chunk"),
        (["length", "s", "--rounds", "2"], "bench length has no --rounds"),
        (["length"], "bench length measures one store"),
        (["length", "a", "b"], "bench length measures one store"),
        (["io", "--rounds", "0"], "nothing to measure"),
        (["io", "--size", "many"], "not a size"),
        (["io", "missing.fa"], "cannot read missing.fa"),
    ],
)
def test_wrong_usage(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["bench", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "hint: " in err


def test_a_genome_that_genoctx_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.fa").write_bytes(b">a\nACG!\n")
    assert app.run(["bench", "io", str(tmp_path / "g.fa"), "--rounds", "1"]) == 1
    assert "'!' is not a nucleotide" in capsys.readouterr().err
