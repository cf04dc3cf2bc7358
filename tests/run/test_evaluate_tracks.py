"""Tracks: a bedGraph that a genome browser opens, with the very bits of the ledger."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_run import Crash, Data, Listener, crash

from genoctx.cli import app
from genoctx.errors import InputError, UsageError
from genoctx.genome.windows import Window
from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid
from genoctx.model.weights import save_weights
from genoctx.report.context_ledger import ContextLedger
from genoctx.report.ledger import Ledger
from genoctx.run.data import open_data, windows_of
from genoctx.run.evaluate import Extras, evaluate
from genoctx.run.tracks import BIN, TrackWriter, in_track_order, parse_track

Row = tuple[str, int, int, float]


def read_track(path: Path) -> tuple[str, list[Row]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    head, *lines = text.splitlines()
    rows = [line.split("\t") for line in lines]
    return head, [(c, int(a), int(b), float(v)) for c, a, b, v in rows]


def write(path: Path, size: int, *pieces: tuple[str, int, list[float]]) -> list[Row]:
    with TrackWriter(path, size, "a name") as track:
        for contig, start, nats in pieces:
            track.add(contig, start, np.array(nats))
    return read_track(path)[1]


NAN, BIT = float("nan"), math.log(2)


def test_lines_are_bases_and_leave_gaps_out(tmp_path: Path) -> None:
    nats = [NAN, BIT, 2 * BIT, NAN, NAN, 3 * BIT]
    rows = write(tmp_path / "t.bedgraph", 1, ("chr1", 10, nats), ("chr2", 0, [NAN, NAN]))
    assert rows == [("chr1", 11, 12, 1.0), ("chr1", 12, 13, 2.0), ("chr1", 15, 16, 3.0)]


def test_means_are_of_aligned_stretches_without_gaps(tmp_path: Path) -> None:
    """Starts of 4 bases: 8, 12, 16; a gap cuts a stretch in two."""
    nats = [NAN, 1 * BIT, 3 * BIT, 5 * BIT, 6 * BIT, NAN, 2 * BIT, 4 * BIT]  # bases 9 to 16
    rows = write(tmp_path / "t.bedgraph", 4, ("c", 9, nats))
    assert rows == [("c", 10, 12, 2.0), ("c", 12, 14, 5.5), ("c", 15, 16, 2.0), ("c", 16, 17, 4.0)]


def test_the_same_track_is_the_same_file(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.bedgraph.gz", 1, ("c", 0, [BIT]))
    write(tmp_path / "b.bedgraph.gz", 1, ("c", 0, [BIT]))
    assert (tmp_path / "a.bedgraph.gz").read_bytes() == (tmp_path / "b.bedgraph.gz").read_bytes()
    head, _ = read_track(tmp_path / "a.bedgraph.gz")
    assert head.startswith('track type=bedGraph name="a name" description="') and rows == [("c", 0, 1, 1.0)]


def test_a_track_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t.bedgraph.gz"
    path.write_bytes(b"old")
    with pytest.raises(Crash), TrackWriter(path, 1, "x") as track:
        track.add("c", 0, np.ones(9))
        crash()
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(InputError, match="there is no folder"):
        TrackWriter(tmp_path / "none" / "t.bedgraph", 1, "x")


@pytest.mark.parametrize(
    ("text", "path", "size"),
    [("t.bedgraph.gz", "t.bedgraph.gz", BIN), ("a:b/t.bg:1", "a:b/t.bg", 1), ("t.bg:1k", "t.bg", 1024)],
)
def test_a_track_is_a_file_and_its_bin(text: str, path: str, size: int) -> None:
    assert parse_track(text) == (Path(path), size)


@pytest.mark.parametrize("text", ["t.bg:0", ":5", "t.bg:many"])
def test_bins_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_track(text)


def test_a_track_has_one_value_for_a_base() -> None:
    def window(contig: str, start: int, end: int) -> Window:
        return Window(contig, start, end, f"{contig}{start}", "+", "holdout", 0.5, 0.0)

    chosen = [window("chr2", 0, 9), window("chr10", 9, 18), window("chr10", 0, 9), window("Chr3", 0, 9)]
    assert [(w.contig, w.start) for w in in_track_order(chosen)] == [
        ("Chr3", 0),
        ("chr10", 0),
        ("chr10", 9),
        ("chr2", 0),
    ]
    with pytest.raises(UsageError, match=r"chr10:1-9 and chr10:9-20 overlap"):
        in_track_order([*chosen, window("chr10", 8, 20)])


@pytest.mark.parametrize("strand", ["+", "-"])
def test_the_track_is_the_ledger_base_by_base(
    strand: str, model: Hybrid, gapped: Data, gapped_text: str, tmp_path: Path
) -> None:
    table = tmp_path / "t.bed"
    table.write_text(gapped.windows.read_text().replace("\t+\tholdout", f"\t{strand}\tholdout"))
    data = open_data(gapped.store, table, ModelConfig(vocab_size=16))
    windows = windows_of(data, "holdout", 6)
    extras = Extras(track=(tmp_path / "t.bedgraph.gz", 1))
    made = evaluate(
        model, data, windows, chunk=300, step=4, out=tmp_path / "e", monitor=Listener(), extras=extras
    )
    head, rows = read_track(tmp_path / "t.bedgraph.gz")
    assert "step 4" in head
    first = {w.start if strand == "+" else w.end - 1 for w in windows}
    wanted = [p for p in range(6 * 512) if gapped_text[p].upper() in "ACGT" and p not in first]
    assert [(start, end) for _, start, end, _ in rows] == [(p, p + 1) for p in wanted]
    ledger = made.ledger
    assert sum(bits for *_, bits in rows) == pytest.approx(
        ledger.totals().nats_acgt_sum / BIT, abs=1e-4 * len(rows)
    )
    in_window = np.bincount([start // 512 for _, start, _, _ in rows], [bits for *_, bits in rows])
    sums = np.bincount(
        ledger.windows[np.searchsorted(ledger.windows[:, 0], ledger.window), 2] // 512, ledger.nats_acgt_sum
    )
    np.testing.assert_allclose(in_window, sums / BIT, atol=1e-4 * 512)


# the command


@pytest.fixture(scope="module")
def checkpoint(model: Hybrid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "step-000007"
    folder.mkdir()
    save_weights(model, folder)
    return folder


@pytest.fixture
def run_eval(
    checkpoint: Path, gapped: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> int:
        table = str(gapped.windows)
        fixed = ["--json", "--no-progress", "eval", str(checkpoint), "--windows", table, "--limit", "4"]
        return app.run([*fixed, "--chunk", "300", *options])

    return run


def test_the_command_writes_what_is_asked_for(
    run_eval: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("-o", "e", "--rc", "--contexts", "64,256", "--tracks", "t.bedgraph.gz:16")
    assert run_eval(*options) == 0
    said = json.loads(capsys.readouterr().out)
    summary = json.loads((tmp_path / "e/summary.json").read_text())
    assert said.items() >= {k: v for k, v in summary.items() if k not in ("schema", "step")}.items()
    assert sorted(p.name for p in (tmp_path / "e").iterdir()) == [
        "contexts.npz",
        "ledger-rc.npz",
        "ledger.npz",
        "summary.json",
    ]
    assert ContextLedger.load("e/contexts.npz").contexts == (64, 256, 512)
    assert Ledger.load("e/ledger-rc.npz").totals().bits_acgt == said["reverse"]["bits_acgt"]
    rows = read_track(tmp_path / "t.bedgraph.gz")[1]
    bits = sum((end - start) * value for _, start, end, value in rows)
    bases = sum(end - start for _, start, end, _ in rows)
    assert bases == said["scored_bases"] and bits / bases == pytest.approx(said["bits_acgt"], abs=1e-4)
    assert run_eval(*options, "--force", "--fail-above", "9") == 0
    assert run_eval(*options, "--force", "--fail-above", "0.5") == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--contexts", "1k"), "is longer than the windows"),
        (("--contexts", "many"), "is not a size"),
        (("--tracks", "there.bedgraph"), "there.bedgraph exists"),
        (("--tracks", "none/t.bedgraph"), "there is no folder none"),
        (("--tracks", "t.bedgraph:0"), "averages over no base"),
    ],
)
def test_the_command_refuses_before_it_scores(
    options: tuple[str, ...],
    words: str,
    run_eval: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "there.bedgraph").write_text("mine")
    assert run_eval("-o", "e", *options) == 2
    assert words in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["there.bedgraph"]
