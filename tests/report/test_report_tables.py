"""What a report says, number by number and word by word (golden files: tests/report/golden)."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_data import losses, make_ledger

from genoctx.errors import InputError, UsageError
from genoctx.report.formats import decimals
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.report.render import render_json, render_text, render_tsv, save_report
from genoctx.report.tables import build_report

GOLDEN = Path(__file__).with_name("golden")
WINDOWS = [
    ("chr5", 6_400, 14_592),
    ("chr5", 14_592, 22_784),
    ("chrX", 512, 10_752),
    ("NC_000023.10_with_a_long_name", 0, 3_000),
]
BASE = losses(WINDOWS, seed=1, spread=0.08)
GAIN = [nats - 0.05 - 0.3 * change for nats, change in zip(BASE, losses(WINDOWS, 2, 0, 0.05), strict=True)]


def model(nats: list[np.ndarray], pieces: int = 1 << 20, **header: Any) -> Ledger:
    return make_ledger(WINDOWS, nats, pieces=pieces, **header)


def markov(order: int, level: float, **header: Any) -> Ledger:
    nats = [level + 0.2 * (values - 1.3) for values in BASE]
    about = {"model": f"Markov order {order}", "order": order, "train_bases": 1_234_567}
    return model(nats, **about, **header)


BEFORE, AFTER = model(BASE, step=0, checkpoint="0ld"), model(GAIN)
CV = {"bits": [1.98 - 0.01 * k + 0.001 * k * k for k in range(12)], "folds": 4, "folds_are": "contigs"}
BASELINES = {
    "order-0": markov(0, 1.36),
    "order-5": markov(5, 1.29, cross_validation={**CV, "scored_bases": 400_000}),
}
REPORT = build_report(BEFORE, AFTER, BASELINES, block=512)


@pytest.mark.parametrize(("name", "render"), [("report.txt", render_text), ("report.tsv", render_tsv)])
def test_the_report_is_the_golden_one(name: str, render: Any) -> None:
    """After a wanted change: GENOCTX_GOLDEN=write pytest tests/report, and read the diff."""
    if os.environ.get("GENOCTX_GOLDEN") == "write":
        (GOLDEN / name).write_text(render(REPORT))
    assert render(REPORT) == (GOLDEN / name).read_text()


def test_numbers_are_total_nats_over_total_bases() -> None:
    for loss, shift in (("full", 0.0), ("acgt", 0.01)):
        for side, nats in (("before", BASE), ("after", GAIN)):
            everything = np.concatenate(nats) - shift
            estimate = REPORT["main"][loss][side]
            assert estimate["value"] == pytest.approx(everything.mean() / math.log(2), rel=1e-12)
            assert estimate["low"] < estimate["value"] < estimate["high"]
            assert estimate["bases"] == len(everything) == REPORT["header"]["scored_bases"]
    main = REPORT["main"]["full"]
    assert main["difference"]["value"] == pytest.approx(
        main["after"]["value"] - main["before"]["value"], abs=1e-12
    )
    assert main["difference"]["better"] + main["difference"]["worse"] == REPORT["method"]["blocks"]


def test_each_contig_is_the_report_on_that_contig() -> None:
    for row in REPORT["contigs"]:
        here = [i for i, (contig, _, _) in enumerate(WINDOWS) if contig == row["contig"]]
        windows = [WINDOWS[i] for i in here]
        alone = build_report(
            make_ledger(windows, [BASE[i] for i in here]),
            make_ledger(windows, [GAIN[i] for i in here]),
            {},
            block=512,
        )
        assert row["full"] == alone["main"]["full"] and row["acgt"] == alone["main"]["acgt"]
    assert [row["full"]["after"]["method"] for row in REPORT["contigs"]] == ["bootstrap", "t", "none"]
    assert sum(row["bases"] for row in REPORT["contigs"]) == REPORT["header"]["scored_bases"]


def test_the_share_of_the_gap_is_zero_for_uniform_and_one_for_the_baseline() -> None:
    uniform = model([np.full(len(nats), math.log(4) + 0.01) for nats in BASE])  # acgt is 0.01 nats lower
    best = BASELINES["order-5"]
    for ledger, expected in ((uniform, 0.0), (dataclasses.replace(best, header=AFTER.header), 1.0)):
        (share,) = build_report(BEFORE, ledger, BASELINES, block=512)["share_of_gap"]
        assert share["baseline"] == "order-5"
        for bound in ("value", "low", "high"):
            assert share["after"][bound] == pytest.approx(expected, abs=1e-9)
    useless = {"order-0": markov(0, math.log(4) + 0.3)}
    report = build_report(BEFORE, AFTER, useless, block=512)
    assert [row["after"] for row in report["share_of_gap"]] == [None]
    assert "the gap is too small" in render_text(report)


@pytest.mark.parametrize("pieces", [1, 63, 64, 1000, 4097])
def test_the_report_does_not_depend_on_how_losses_arrived(pieces: int) -> None:
    report = build_report(
        model(BASE, pieces, step=0, checkpoint="0ld"), model(GAIN, pieces), BASELINES, block=512
    )
    assert render_text(report) == render_text(REPORT) and render_tsv(report) == render_tsv(REPORT)
    assert close(report, REPORT)


def close(a: Any, b: Any) -> bool:
    """Equal JSON values, floats to 1e-9."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return bool(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)) if isinstance(a, float) else bool(a == b)


def test_every_number_survives_json(tmp_path: Path) -> None:
    assert json.loads(render_json(REPORT)) == REPORT
    paths = save_report(REPORT, tmp_path / "new" / "report")
    assert [path.name for path in paths] == ["report.json", "report.txt", "report.tsv", "report.html"]
    assert paths[1].read_text() == render_text(json.loads(paths[0].read_text()))
    save_report(REPORT, tmp_path / "new" / "report")
    assert len(os.listdir(tmp_path / "new" / "report")) == 4


def test_no_line_is_wider_than_a_terminal() -> None:
    long = {
        "model": "m" * 200,
        "command": "genoctx " + "--set a=b " * 40,
        "step": 123_456_789,
        "store": "/x" * 90,
    }
    report = build_report(model(BASE, **long), model(GAIN, **long), BASELINES, block=512, notes=["n" * 100])
    lines = render_text(report).splitlines()
    assert max(map(len, lines)) <= 80 and not [line for line in lines if line != line.rstrip()]
    assert all(len(line.split("\t")) == 13 for line in render_tsv(report).splitlines())


@pytest.mark.parametrize(
    ("half_width", "expected"),
    [(0.2, 3), (0.02, 3), (0.0075, 4), (0.0018, 4), (0.00027, 5), (0.00001, 5), (0.0, 5), (None, 3)],
)
def test_digits_are_those_the_interval_supports(half_width: float | None, expected: int) -> None:
    low, high = (None, None) if half_width is None else (1.9 - half_width, 1.9 + half_width)
    assert decimals({"value": 1.9, "low": low, "high": high}) == expected


def test_without_before_or_baselines_there_is_still_a_report() -> None:
    report = build_report(None, AFTER, {}, block=512, notes=["No baselines: the store is gone."])
    assert report["main"]["full"]["before"] is report["main"]["full"]["difference"] is None
    assert report["baselines"] == [] and report["share_of_gap"] == [] and report["gate"] == []
    text = render_text(report)
    assert "the store is gone" in text and "after - before" not in text and "interval of after" in text
    assert report["main"]["full"]["after"] == REPORT["main"]["full"]["after"]


def test_too_few_blocks_are_not_for_quoting() -> None:
    report = build_report(BEFORE, AFTER, BASELINES, block=8192)
    assert report["method"]["blocks"] == 6 and report["main"]["full"]["difference"]["low"] is None
    assert len(report["gate"]) == 1 and "only 6 blocks of 8,192 bases" in report["gate"][0]
    assert render_text(report).startswith(
        "Held-out loss (NOT FOR QUOTING"
    ) and "too few blocks" in render_text(report)


def test_other_window_tables_are_noticed() -> None:
    other = model(BASE, windows_digest="another")
    same_bases = build_report(other, AFTER, {}, block=512)
    assert same_bases["gate"] == ["before and after were evaluated on different window tables"]
    assert same_bases["main"]["full"]["difference"] == REPORT["main"]["full"]["difference"]
    fewer = make_ledger(WINDOWS[:2], BASE[:2], windows_digest="another")
    unpaired = build_report(fewer, AFTER, BASELINES, block=512)
    assert "no difference is given" in unpaired["gate"][1]
    assert (
        unpaired["main"]["full"]["difference"] is None and unpaired["main"]["full"]["before"]["blocks"] == 33
    )
    assert [row["before"] for row in unpaired["share_of_gap"]] == [None] and unpaired["contigs"][1]["full"][
        "before"
    ] is None
    assert "after - before" not in render_text(unpaired)


def test_ledgers_that_cannot_be_compared_are_errors() -> None:
    with pytest.raises(InputError, match="scored different bases"):
        build_report(make_ledger(WINDOWS[:2], BASE[:2]), AFTER, {}, block=512)
    with pytest.raises(InputError, match="baseline x scored different bases"):
        build_report(None, AFTER, {"x": make_ledger(WINDOWS[:2], BASE[:2])}, block=512)
    with pytest.raises(InputError, match="no base was scored"):
        build_report(None, LedgerBuilder({}, ["chr1"]).build(), {})
    with pytest.raises(UsageError):
        build_report(None, AFTER, {}, block=100)


def test_warnings_name_what_a_reader_must_know() -> None:
    overlapping = [("chr1", 0, 6_400), ("chr1", 3_200, 9_600)]
    builder_lost = make_ledger(overlapping, losses(overlapping, 1))
    builder_lost.excluded.clear()
    warnings = " ".join(build_report(None, builder_lost, {}, block=512)["warnings"])
    assert "2 held-out windows" in warnings
    assert "the windows overlap: 3,200 bases" in warnings
    assert "2 bases of the windows were neither scored nor excluded" in warnings
    shorter = build_report(model(BASE, context=512, checkpoint="0ld"), AFTER, {}, block=512)
    assert any("differ in context: 512 and 1024" in warning for warning in shorter["warnings"])
    assert not any("differ" in warning for warning in REPORT["warnings"])


def test_blocks_shorter_than_what_is_alike_are_noticed() -> None:
    """Losses that wander over thousands of bases: blocks of 64 give far too narrow an interval."""
    windows = [("chr1", 0, 64 * 600)]
    wave = [np.sin(np.arange(64 * 600 - 1) / 900) + 2 + losses(windows, 0, 0, 0.01)[0]]
    report = build_report(None, make_ledger(windows, wave), {}, block=128)
    assert any("blocks are too short" in warning for warning in report["warnings"])
    sizes = [row["half_width"] for row in report["block_lengths"]]
    assert sizes[0] < sizes[1] < sizes[2]


def test_footnotes_tell_the_method() -> None:
    notes = " ".join(REPORT["notes"])
    for words in (
        "blocks of 512 bases",
        "seed 0",
        "2,000 bootstrap draws",
        "forward strand",
        "weight 16",
        "Order 5",
    ):
        assert words in notes
    assert "conditional on these contigs" not in notes, "three contigs are held out"
    one = build_report(None, make_ledger(WINDOWS[:1], BASE[:1]), {}, block=512)
    assert "conditional on these contigs: with only chr5" in " ".join(one["notes"])
    assert "Student's t" in " ".join(one["notes"])
    half = REPORT["main"]["full"]["difference"]
    reach = f"{(half['high'] - half['low']) / 2:.2g}"
    assert f"a difference under {reach} bits cannot be seen" in notes
