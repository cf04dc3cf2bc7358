"""The spread over training seeds, beside the interval over blocks and apart from it."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
from full_report import full_ledger

from genoctx.errors import InputError
from genoctx.report.ledger import Ledger
from genoctx.report.render import render_html, render_text, render_tsv
from genoctx.report.seeds import SeedRun, over_seeds
from genoctx.report.stats import Sampling
from genoctx.report.tables import build_report

BEFORE = full_ledger(1.33, step=0, checkpoint="0ld")
LEVELS = (1.27, 1.26, 1.29, 1.28)


def runs_of(count: int, before: Ledger | None = BEFORE) -> list[SeedRun]:
    return [SeedRun(f"runs/s{i}", i, full_ledger(LEVELS[i], checkpoint=i), before) for i in range(count)]


def test_mean_sd_and_range_are_those_of_the_runs() -> None:
    runs = runs_of(4)
    found = over_seeds(runs, 512, Sampling())
    assert found is not None and [row["seed"] for row in found["runs"]] == [0, 1, 2, 3]
    bits = [run.after.totals().bits_acgt for run in runs]
    after, difference = found["over_runs"]
    assert after["mean"] == pytest.approx(statistics.fmean(bits), rel=1e-12)
    assert after["sd"] == pytest.approx(statistics.stdev(bits), rel=1e-9)
    assert (after["least"], after["most"]) == pytest.approx((min(bits), max(bits)), rel=1e-12)
    half = 3.182446305284263 * after["sd"] / 2  # t of 95 % and 3 degrees of freedom, sqrt(4)
    assert (after["low"], after["high"]) == pytest.approx(
        (after["mean"] - half, after["mean"] + half), rel=1e-9
    )
    assert difference["mean"] == pytest.approx(after["mean"] - BEFORE.totals().bits_acgt, rel=1e-9)
    assert difference["sd"] == pytest.approx(after["sd"], rel=1e-6), "one before for all"


def test_the_error_within_a_run_is_that_over_its_blocks() -> None:
    found = over_seeds(runs_of(2, None), 1024, Sampling())
    assert found is not None and [row["quantity"] for row in found["over_runs"]] == ["after"]
    few = over_seeds(runs_of(2, None), 512, Sampling())
    assert few is not None
    for made in (found, few):
        rows, within = made["runs"], made["over_runs"][0]["within"]
        half = statistics.fmean((row["after"]["high"] - row["after"]["low"]) / 2 for row in rows)
        assert within == pytest.approx(half / 2, rel=0.1), "an interval of 95 % is about two standard errors"


def test_few_runs_have_no_interval_and_one_no_spread() -> None:
    assert over_seeds(runs_of(1), 512, Sampling()) is None and over_seeds([], 512, Sampling()) is None
    two = over_seeds(runs_of(2), 512, Sampling())
    assert two is not None and two["over_runs"][0]["low"] is two["over_runs"][0]["high"] is None
    bare = over_seeds(runs_of(3), 8192, Sampling())
    assert bare is not None and bare["over_runs"][0]["within"] is None
    assert math.isfinite(bare["over_runs"][0]["low"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": 0}, "runs/s0 and runs/s1 are the same model"),
        ({"step": 7}, "differ in step: 7 and 200"),
        ({"windows_digest": "another"}, "differ in windows_digest"),
    ],
)
def test_runs_that_do_not_compare_are_refused(change: dict[str, object], words: str) -> None:
    first, second = runs_of(2)
    header = {**second.after.header, **change}
    with pytest.raises(InputError, match=words):
        over_seeds(
            [first, dataclasses.replace(second, after=dataclasses.replace(second.after, header=header))],
            512,
            Sampling(),
        )


def test_other_bases_are_refused() -> None:
    first, second = runs_of(2)
    count = second.after.count.copy()
    count[3] -= 1
    with pytest.raises(InputError, match="runs/s1 and runs/s0 scored different bases"):
        over_seeds(
            [first, dataclasses.replace(second, after=dataclasses.replace(second.after, count=count))],
            512,
            Sampling(),
        )


def test_every_form_shows_the_runs_and_keeps_the_two_variances_apart() -> None:
    runs = runs_of(3)
    report = build_report(BEFORE, runs[0].after, {}, block=512, runs=runs)
    text = render_text(report)
    assert "runs/s2" in text and "sd over seeds" in text and "error over blocks" in text
    assert 'id="seeds"' in render_html(report) and "SD over seeds" in render_html(report)
    assert sum(line.startswith("seed\truns/s") for line in render_tsv(report).splitlines()) == 9
    assert any("say nothing about other seeds" in note for note in report["notes"])
    single = build_report(BEFORE, runs[0].after, {}, block=512)
    assert single["seeds"] is None and "seeds" not in render_text(single).lower()
    assert report["main"] == single["main"], "no interval has both"
