"""Strata, positions and calibration: against sums made base by base, additive, and checked when read."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_data import HEADER

from genoctx.errors import InputError
from genoctx.report.ledger import Ledger, LedgerBuilder, merge, merge_all
from genoctx.report.strata import add_strata, find_rows
from genoctx.report.sums import PositionSums

NAMES = ("mask/unmasked", "mask/soft-masked", "gc/0", "gc/1", "gc/2")
WINDOWS = [("chr1", 100, 700, "+"), ("chr1", 700, 1000, "-"), ("chr2", 0, 257, "+")]
Bases = dict[str, np.ndarray]


def some_bases(seed: int = 0) -> list[Bases]:
    """All but the first base of each window as it is read, with what the builder wants to know."""
    rng = np.random.default_rng(seed)
    made = []
    for _, start, end, strand in WINDOWS:
        positions = np.arange(start, end)[1:] if strand == "+" else np.arange(start, end)[:-1]
        n = len(positions)
        chances = rng.dirichlet(np.ones(4), n).astype(np.float32)
        truth = rng.integers(0, 4, n)
        made.append(
            {
                "positions": positions,
                "full": rng.uniform(0, 3, n),
                "acgt": rng.uniform(0, 3, n),
                "strata": np.stack([rng.integers(0, 2, n), 2 + rng.integers(0, 3, n)]).astype(np.uint8),
                "chances": chances,
                "truth": truth,
            }
        )
    return made


BASES = some_bases()


def build(parts: list[tuple[int, np.ndarray]], names: tuple[str, ...] = NAMES) -> Ledger:
    """A ledger of (window, which of its bases)."""
    builder = LedgerBuilder(HEADER, ["chr1", "chr2"], 64, strata=names, calibrate=True)
    for index in dict.fromkeys(index for index, _ in parts):
        builder.window(index, *WINDOWS[index])
    for index, which in parts:
        b = BASES[index]
        builder.add(
            index,
            WINDOWS[index][0],
            b["positions"][which],
            b["full"][which],
            b["acgt"][which],
            strata=b["strata"][:, which],
            chances=b["chances"][which],
            truth=b["truth"][which],
        )
    return builder.build()


WHOLE = build([(i, np.arange(len(b["positions"]))) for i, b in enumerate(BASES)])


def parts_of(ledger: Ledger) -> tuple[Any, Any, Any]:
    assert ledger.strata is not None and ledger.positions is not None and ledger.calibration is not None
    return ledger.strata, ledger.positions, ledger.calibration


def same(a: Ledger, b: Ledger) -> None:
    for one, other in zip(parts_of(a), parts_of(b), strict=True):
        for name, value in vars(one).items():
            if isinstance(value, tuple):
                assert value == getattr(other, name)
            else:
                np.testing.assert_allclose(value, getattr(other, name), rtol=1e-12, err_msg=name)


def test_strata_are_sums_over_their_bases() -> None:
    expected: dict[tuple[int, int, int], list[float]] = {}
    for index, b in enumerate(BASES):
        for i, position in enumerate(b["positions"].tolist()):
            for stratum in b["strata"][:, i].tolist():
                cell = expected.setdefault((index, position // 64 * 64, stratum), [0, 0.0, 0.0])
                cell[0] += 1
                cell[1] += b["full"][i]
                cell[2] += b["acgt"][i]
    strata = parts_of(WHOLE)[0]
    assert list(zip(strata.window, strata.block_start, strata.stratum, strict=True)) == sorted(expected)
    found = zip(strata.count, strata.nats_full_sum, strata.nats_acgt_sum, strict=True)
    for row, cell in zip(found, (expected[key] for key in sorted(expected)), strict=True):
        assert row == pytest.approx(cell, rel=1e-12)
    assert strata.facets == ("mask", "gc")
    for facet in strata.facets:
        assert strata.count[strata.rows_of(facet)].sum() == WHOLE.count.sum()


def test_positions_count_from_where_the_window_is_read() -> None:
    counts, sums = [0] * 20, [0.0] * 20
    for (_, start, end, strand), b in zip(WINDOWS, BASES, strict=True):
        for position, nats in zip(b["positions"].tolist(), b["acgt"], strict=True):
            read_at = position - start if strand == "+" else end - 1 - position
            counts[math.floor(math.log2(read_at + 1))] += 1
            sums[math.floor(math.log2(read_at + 1))] += nats
    found = parts_of(WHOLE)[1]
    assert counts[0] == 0 and counts[1] == 6  # positions 1 and 2 of three windows
    assert found.count.tolist() == counts[:10] and sum(counts[10:]) == 0  # 600 bases: bins 0 to 9
    np.testing.assert_allclose(found.nats_acgt_sum, sums[:10], rtol=1e-12)


@pytest.mark.parametrize("exponent", [10, 29, 40, 52])
def test_bins_of_positions_are_exact_at_powers_of_two(exponent: int) -> None:
    edge = 2**exponent
    sums = PositionSums()
    sums.add(SimpleNamespace(start=0, strand="+"), np.array([edge - 2, edge - 1]), np.array([1.0, 2.0]))  # type: ignore[arg-type]
    found = sums.build(edge)
    assert found.count[exponent - 1 :].tolist() == [1, 1]
    assert found.nats_acgt_sum[exponent - 1 :].tolist() == [1, 2]


def test_calibration_is_a_histogram_of_all_four_probabilities() -> None:
    count, p_sum, hits = [0] * 20, [0.0] * 20, [0] * 20
    for b in BASES:
        for chances, truth in zip(b["chances"], b["truth"], strict=True):
            for letter, p in enumerate(chances.tolist()):
                place = min(int(np.float32(p) * np.float32(20)), 19)
                count[place] += 1
                p_sum[place] += p
                hits[place] += letter == truth
    found = parts_of(WHOLE)[2]
    assert found.count.tolist() == count and found.hits.tolist() == hits
    np.testing.assert_allclose(found.p_sum, p_sum, rtol=1e-12)
    assert found.count.sum() == 4 * WHOLE.count.sum() and found.hits.sum() == WHOLE.count.sum()


def test_certainty_belongs_to_the_last_bin() -> None:
    builder = LedgerBuilder(HEADER, ["c"], 64, calibrate=True)
    builder.window(0, "c", 0, 4)
    sure = np.array([[0, 0, 1, 0]], dtype=np.float32)
    builder.add(0, "c", np.array([1]), np.zeros(1), np.zeros(1), chances=sure, truth=np.array([2]))
    found = parts_of(dataclasses.replace(builder.build(), strata=WHOLE.strata))[2]
    assert found.count[[0, 19]].tolist() == [3, 1] and found.hits[[0, 19]].tolist() == [0, 1]


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_parts_in_any_order_add_up_to_the_whole(random: Any, ranks: int, pieces: int) -> None:
    cut: list[tuple[int, np.ndarray]] = []
    for index, b in enumerate(BASES):
        order = np.random.default_rng(random.randrange(1 << 30)).permutation(len(b["positions"]))
        cut += [(index, part) for part in np.array_split(order, pieces) if len(part)]
    random.shuffle(cut)
    ledgers = [build(cut[rank::ranks]) for rank in range(ranks) if cut[rank::ranks]]
    same(merge_all(ledgers), WHOLE)
    same(merge_all(reversed(ledgers)), WHOLE)


def test_only_facets_that_all_parts_have_stand_in_the_sum() -> None:
    """An annotated store, and the same one without annotation: their bases are equal, and so their digests."""
    a, b, c = (build([(i, np.arange(len(b["positions"])))]) for i, b in enumerate(BASES))
    assert b.strata is not None and c.strata is not None
    only_gc = ("gc/0", "gc/1", "gc/2")
    rows = b.strata.rows_of("gc")
    columns = {k: v[rows] for k, v in vars(b.strata).items() if k != "names"}
    columns["stratum"] = columns["stratum"] - 2
    b = dataclasses.replace(b, strata=dataclasses.replace(b.strata, names=only_gc, **columns))
    assert not b.problem()
    one, two = merge(merge(a, b), c), merge(a, merge(c, b))
    same(one, two)
    assert one.strata is not None and one.strata.facets == ("gc",)
    assert one.strata.count.sum() == one.count.sum() == WHOLE.count.sum()
    bare = dataclasses.replace(c, strata=None, positions=None, calibration=None)
    assert (merge(a, bare).strata, merge(bare, a).positions, merge(a, bare).calibration) == (None,) * 3
    assert add_strata(a.strata, dataclasses.replace(c.strata, names=tuple("x/" + n for n in NAMES))) is None


def test_parts_come_back_from_a_file(tmp_path: Path) -> None:
    WHOLE.save(tmp_path / "ledger.npz")
    back = Ledger.load(tmp_path / "ledger.npz")
    same(back, WHOLE)
    first = (tmp_path / "ledger.npz").read_bytes()
    back.save(tmp_path / "ledger.npz")
    assert (tmp_path / "ledger.npz").read_bytes() == first
    dataclasses.replace(WHOLE, strata=None, calibration=None).save(tmp_path / "ledger.npz")
    back = Ledger.load(tmp_path / "ledger.npz")
    assert back.strata is None and back.calibration is None and back.positions is not None


@pytest.mark.parametrize(
    ("part", "column", "row", "value", "words"),
    [
        ("strata", "count", 3, 1, "of gc do not hold every scored base once"),
        ("strata", "count", 3, 0, "strata without bases"),
        ("strata", "stratum", 0, 5, "have no name"),
        ("strata", "stratum", 0, 4, "strata that are not sorted"),
        ("strata", "window", -1, 9, "blocks that are not in the ledger"),
        ("strata", "block_start", -1, 512, "blocks that are not in the ledger"),
        ("strata", "nats_acgt_sum", 0, float("nan"), "not a number"),
        ("positions", "count", 2, 7, "positions do not hold every"),
        ("positions", "nats_acgt_sum", 2, float("inf"), "not a number"),
        ("calibration", "count", 2, 7, "calibration does not hold every"),
        ("calibration", "p_sum", 2, float("nan"), "not a number"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    tmp_path: Path, part: str, column: str, row: int, value: float, words: str
) -> None:
    broken = build([(i, np.arange(len(b["positions"]))) for i, b in enumerate(BASES)])
    getattr(getattr(broken, part), column)[row] = value
    broken.save(tmp_path / "x.npz")
    with pytest.raises(InputError, match=words):
        Ledger.load(tmp_path / "x.npz")


def test_a_part_that_is_missing_is_refused(tmp_path: Path) -> None:
    WHOLE.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = {name: file[name] for name in file if name != "positions.count"}
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match="positions"):
        Ledger.load(tmp_path / "x.npz")


def test_a_builder_is_told_all_or_nothing() -> None:
    once = np.ones(1)
    told = {"strata": np.zeros((1, 1), int), "chances": np.full((1, 4), 0.25), "truth": np.zeros(1, int)}
    for names, calibrate, keys in [
        (NAMES, False, {}),
        ((), False, {"strata"}),
        ((), True, {}),
        ((), False, {"chances", "truth"}),
    ]:
        builder = LedgerBuilder(HEADER, ["c"], strata=names, calibrate=calibrate)
        builder.window(0, "c", 0, 9)
        with pytest.raises(ValueError, match="of all bases or of none"):
            builder.add(0, "c", np.array([1]), once, once, **{k: told[k] for k in keys})


def test_rows_are_found_by_both_columns() -> None:
    a, b = np.array([3, 3, 8]), np.array([0, 64, 0])
    wanted = (np.array([8, 3, 3, 9, 1, 8, 3]), np.array([0, 64, 0, 0, 0, 64, -64]))
    assert find_rows((a, b), wanted).tolist() == [2, 1, 0, -1, -1, -1, -1]
    assert find_rows((a[:0], b[:0]), wanted).tolist() == [-1] * 7
    assert find_rows((a, b), (a[:0], b[:0])).tolist() == []
