"""The numbers of each section are those of the ledgers, added up another way."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from full_report import WINDOWS, context_ledger, full_ledger, full_report

from genoctx.errors import InputError
from genoctx.report import sources
from genoctx.report.blocks import blocks_of
from genoctx.report.by_block import by_block, extremes
from genoctx.report.by_context import by_context
from genoctx.report.checks import calibration, strands
from genoctx.report.sides import Sides
from genoctx.report.stats import LN2, Sampling

REPORT = full_report()
SAMPLING = Sampling()
AFTER = full_ledger(1.27)


def test_the_strata_of_a_facet_add_up_to_the_whole() -> None:
    main = REPORT["main"]["acgt"]
    assert [table["facet"] for table in REPORT["strata"]] == ["mask", "gc", "region"]
    for table in REPORT["strata"]:
        assert sum(row["bases"] for row in table["rows"]) == REPORT["header"]["scored_bases"]
        assert sum(row["share"] for row in table["rows"]) == pytest.approx(1)
        for side in ("before", "after", "difference"):
            weighted = sum(row["bases"] * row["acgt"][side]["value"] for row in table["rows"])
            assert weighted / REPORT["header"]["scored_bases"] == pytest.approx(main[side]["value"], rel=1e-9)


def test_baselines_stand_beside_every_stratum_and_contig() -> None:
    bases = REPORT["header"]["scored_bases"]
    for rows in (REPORT["contigs"], *(table["rows"] for table in REPORT["strata"])):
        for k, whole in enumerate(REPORT["baselines"][1:]):
            beside = [row["baselines"][k] for row in rows]
            assert {each["name"] for each in beside} == {whole["name"]}
            for quantity in ("bits", "after_minus_baseline"):
                found = sum(each[quantity]["bases"] * each[quantity]["value"] for each in beside)
                assert found / bases == pytest.approx(whole[quantity]["value"], rel=1e-9)


def test_strata_without_a_before_of_their_own_have_no_difference() -> None:
    from genoctx.report.by_stratum import by_stratum

    bare = dataclasses.replace(full_ledger(1.33), strata=None)
    for table in by_stratum(AFTER, bare, 512, SAMPLING):
        assert all(row["acgt"]["before"] is row["acgt"]["difference"] is None for row in table["rows"])
    assert by_stratum(bare, None, 512, SAMPLING) == []


def test_a_context_is_compared_with_the_shortest_on_the_same_bases() -> None:
    curves = {
        curve["group"]: curve for curve in by_context(context_ledger(1.27), None, 512, SAMPLING)["after"]
    }
    assert curves["seen"]["bases"] + curves["novel"]["bases"] == curves["all"]["bases"] == 3 * 4096
    for curve in curves.values():
        first, *longer = curve["points"]
        assert first["context"] == 1024 and first["difference"] is None
        for point in longer:
            apart = point["bits"]["value"] - first["bits"]["value"]
            assert point["difference"]["value"] == pytest.approx(apart, abs=1e-12)
            assert point["bits"]["bases"] == curve["bases"]
    gains = {group: curve["points"][-1]["difference"]["value"] * LN2 for group, curve in curves.items()}
    assert gains["novel"] == pytest.approx(-0.03, abs=0.002) and gains["seen"] == pytest.approx(
        -0.27, abs=0.002
    )
    assert all(point["minus_adaptive"] is not None for point in curves["all"]["points"])
    fewer = context_ledger(1.33)
    fewer = dataclasses.replace(fewer, contexts=(1024, 2048, 8192))
    assert by_context(context_ledger(1.27), fewer, 512, SAMPLING)["before"] is None


def test_the_baseline_is_another_model_on_the_same_bases() -> None:
    made = context_ledger(1.27)
    assert made.adaptive_nats_sum is not None
    found = by_context(made, None, 512, SAMPLING)
    swapped = dataclasses.replace(made, nats_acgt_sum=made.adaptive_nats_sum, adaptive_nats_sum=None)
    alone = by_context(swapped, None, 512, SAMPLING)
    assert found["adaptive"] == alone["after"] and alone["adaptive"] is None
    for after, adaptive in zip(found["after"], found["adaptive"], strict=True):
        for here, there in zip(after["points"], adaptive["points"], strict=True):
            apart = here["bits"]["value"] - there["bits"]["value"]
            assert here["minus_adaptive"]["value"] == pytest.approx(apart, abs=1e-12)
            assert here["minus_adaptive"]["blocks"] == here["bits"]["blocks"]
            assert there["minus_adaptive"] is None


def test_positions_hold_every_base_once() -> None:
    rows = REPORT["positions"]["after"]
    assert sum(row["bases"] for row in rows) == REPORT["header"]["scored_bases"]
    assert [row["from"] for row in rows] == [1 << i for i in range(1, 14)]
    nats = sum(row["bases"] * row["bits"] for row in rows) * LN2
    assert nats == pytest.approx(AFTER.totals().nats_acgt_sum, rel=1e-9)


def test_calibration_is_the_distance_from_the_diagonal() -> None:
    found = calibration(AFTER)
    assert found is not None and found["bases"] == AFTER.totals().count
    total = sum(row["count"] for row in found["bins"])
    error = sum(row["count"] / total * abs(row["hit_rate"] - row["probability"]) for row in found["bins"])
    assert total == 4 * found["bases"] and found["error"] == pytest.approx(error, rel=1e-9)
    assert calibration(dataclasses.replace(AFTER, calibration=None)) is None


def test_strands_are_paired_block_by_block() -> None:
    reverse = full_ledger(1.28, strand="-")
    found = strands(AFTER, reverse, 512, SAMPLING)
    a, b = AFTER.totals(), reverse.totals()
    assert found["forward"]["value"] == pytest.approx(a.bits_acgt, rel=1e-12)
    assert found["reverse"]["value"] == pytest.approx(b.bits_acgt, rel=1e-12)
    assert found["gap"]["value"] == pytest.approx(a.bits_acgt - b.bits_acgt, rel=1e-9)
    both = (a.nats_acgt_sum + b.nats_acgt_sum) / (LN2 * (a.count + b.count))
    assert found["mean"]["value"] == pytest.approx(both, rel=1e-12)
    # one ledger against itself: no gap, and an interval of no length
    none = strands(AFTER, AFTER, 512, SAMPLING)["gap"]
    assert none["value"] == none["low"] == none["high"] == 0


def test_extremes_are_the_outermost_blocks_in_the_coordinates_of_a_browser() -> None:
    sides = Sides(blocks_of(AFTER, 512), None, False, {}, SAMPLING)
    table = by_block(sides, AFTER)
    assert sum(table["bases"]) == AFTER.totals().count and table["before"] is None
    starts = {contig: start + 1 for contig, start, _ in reversed(WINDOWS)}
    assert table["start"][0] == starts["chr5"] and max(table["end"]) == 22_784
    assert all(
        end - start + 1 >= n
        for start, end, n in zip(table["start"], table["end"], table["bases"], strict=True)
    )
    found = extremes(table, 512)
    enough = [v for v, n in zip(table["after"], table["bases"], strict=True) if n >= 256]
    assert [row["after"] for row in found["worst"]] == sorted(enough)[::-1][:10]
    assert [row["after"] for row in found["best"]] == sorted(enough)[:10]


def test_what_lies_beside_a_ledger_must_be_of_its_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "ledger.npz"
    AFTER.save(path)
    assert sources.read_reverse(path, AFTER) is None and sources.read_contexts(path, AFTER) is None
    full_ledger(1.28, strand="-").save(tmp_path / "ledger-rc.npz")
    context_ledger(1.27).save(tmp_path / "contexts.npz")
    assert sources.read_reverse(path, AFTER) is not None and sources.read_contexts(path, AFTER) is not None
    full_ledger(1.28).save(tmp_path / "ledger-rc.npz")
    with pytest.raises(InputError, match="not of the reverse strand"):
        sources.read_reverse(path, AFTER)
    full_ledger(1.28, strand="-", checkpoint="another").save(tmp_path / "ledger-rc.npz")
    with pytest.raises(InputError, match="its checkpoint is another, not c0ffee"):
        sources.read_reverse(path, AFTER)
    other = dataclasses.replace(AFTER, header={**AFTER.header, "step": 7})
    with pytest.raises(InputError, match="its step is 200, not 7"):
        sources.read_contexts(path, other)


def test_a_run_is_found_from_its_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "eval" / "step-000200"
    folder.mkdir(parents=True)
    AFTER.save(folder / "ledger.npz")
    assert sources.run_of(folder / "ledger.npz") is None
    (tmp_path / "run" / "metrics.jsonl").touch()
    assert sources.run_of(folder / "ledger.npz") == tmp_path.resolve() / "run"
    assert sources.read_machine(tmp_path / "run") is None
    (tmp_path / "run" / "provenance.json").write_text(
        '{"sessions": [{"machine": {"cpus": 1}, "versions": {}}, {"machine": {"cpus": 2}, "versions": {}}]}'
    )
    assert sources.read_machine(tmp_path / "run") == {"machine": {"cpus": 2}, "versions": {}}


def test_every_estimate_has_a_count() -> None:
    def walk(value: object) -> int:
        if isinstance(value, dict):
            if "value" in value:
                assert value["bases"] > 0 and value["blocks"] > 0 and math.isfinite(value["value"])
                assert (value["low"] is None) == (value["blocks"] < 8) == (value["method"] == "none")
                return 1
            return sum(map(walk, value.values()))
        return sum(map(walk, value)) if isinstance(value, list) else 0

    assert walk({key: each for key, each in REPORT.items() if key != "header"}) > 80
    assert np.isfinite(REPORT["blocks"]["after"]).all()
