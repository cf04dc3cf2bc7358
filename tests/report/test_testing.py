"""Tests of many differences: Holm by family, and nothing is tested that has too few blocks."""

from __future__ import annotations

import dataclasses

import pytest
from full_report import context_ledger, full_ledger, full_report
from hypothesis import given
from hypothesis import strategies as st

from genoctx.report.sources import Beside
from genoctx.report.tables import build_report
from genoctx.report.testing import holm

REPORT = full_report()


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, never falling."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2] and holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_no_correction_and_bonferroni(chances: list[float]) -> None:
    found = holm(chances)
    assert all(
        p <= q <= min(1, len(chances) * p) or q == max(found) for p, q in zip(chances, found, strict=True)
    )
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    corrected = [found[i] for i in order]
    assert corrected == sorted(corrected)
    # rejected at 0.05 step by step, as Holm 1979 puts it
    kept, rejected = len(chances), []
    for i in order:
        if chances[i] * kept > 0.05:
            break
        rejected.append(i)
        kept -= 1
    assert {i for i, p in enumerate(found) if p <= 0.05} == set(rejected)


def test_families_are_the_headline_the_strata_and_the_contexts() -> None:
    names = {family["family"]: [row["name"] for row in family["rows"]] for family in REPORT["tests"]}
    assert names["after - before"] == ["all"]
    assert names["after - before, by stratum"] == [
        *("mask/unmasked", "mask/soft-masked", "gc/4", "gc/5", "region/intergenic", "region/CDS1")
    ]
    groups = [f"{group}/{context}" for group in ("all", "novel", "seen") for context in (4096, 8192)]
    assert names["context, to the shortest"] == groups
    for family in REPORT["tests"]:
        assert holm([row["p"] for row in family["rows"]]) == [row["p_holm"] for row in family["rows"]]
        assert all(row["blocks"] >= 8 for row in family["rows"])


def test_no_test_no_chance() -> None:
    before, after = full_ledger(1.33, checkpoint="0ld"), full_ledger(1.27)
    plain = build_report(before, after, {}, block=512)
    assert plain["tests"] is None and "p" not in plain["main"]["acgt"]["difference"]
    assert REPORT["main"]["acgt"]["difference"]["p"] < 1e-6
    alone = build_report(None, after, {}, block=512, test=True)
    assert alone["tests"] == []


def test_too_few_blocks_are_not_tested() -> None:
    before, after = full_ledger(1.33, checkpoint="0ld"), full_ledger(1.27)
    few = build_report(before, after, {}, block=8192, test=True, beside=Beside(contexts=context_ledger(1.27)))
    assert few["main"]["acgt"]["difference"]["p"] is None and few["tests"] == []


def test_nothing_gained_is_no_finding() -> None:
    after = full_ledger(1.27)
    same = dataclasses.replace(after, header={**after.header, "checkpoint": "0ld"})
    found = build_report(same, after, {}, block=512, test=True)
    assert {row["p_holm"] for family in found["tests"] for row in family["rows"]} == {1.0}
