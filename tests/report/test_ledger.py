"""The ledger: additive, order-free, and never a base twice."""

from __future__ import annotations

import contextlib
import math
import os
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_data import HEADER, losses, make_ledger

from genoctx.errors import GenoctxError, InputError
from genoctx.report.ledger import Ledger, LedgerBuilder, bits_per_base, merge, merge_all
from genoctx.report.npz import write_npz

WINDOWS = [("chr1", 100, 700), ("chr1", 700, 1000), ("chr2", 0, 257)]
NATS = losses(WINDOWS, seed=1)
WHOLE = make_ledger(WINDOWS, NATS)
SUMS = ("nats_full_sum", "nats_acgt_sum", "nats_full_sq_sum")


def same(a: Ledger, b: Ledger) -> None:
    """Equal rows and counts, sums equal to 1e-12."""
    assert a.contigs == b.contigs and a.block == b.block and a.excluded == b.excluded
    for name in ("windows", "contig", "window", "block_start", "count"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in SUMS:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12, err_msg=name)
    assert a.positions is not None and b.positions is not None
    np.testing.assert_array_equal(a.positions.count, b.positions.count)
    np.testing.assert_allclose(a.positions.nats_acgt_sum, b.positions.nats_acgt_sum, rtol=1e-12)


def scattered(parts: list[list[tuple[int, np.ndarray]]]) -> list[Ledger]:
    """One ledger for each list of (window, offsets into its scored bases)."""
    made = []
    for part in parts:
        builder = LedgerBuilder(HEADER, ["chr1", "chr2"], 64)
        for index in dict.fromkeys(index for index, _ in part):
            builder.window(index, *WINDOWS[index])
            if any(0 in offsets for i, offsets in part if i == index):
                builder.exclude("first base of its window", 1)
        for index, offsets in part:
            contig, start, _ = WINDOWS[index]
            nats = NATS[index][offsets]
            builder.add(index, contig, start + 1 + offsets, nats, nats - 0.01)
        made.append(builder.build())
    return made


def test_rows_are_sums_by_window_and_aligned_block() -> None:
    expected: dict[tuple[int, int], list[float]] = {}
    for index, (_, start, _) in enumerate(WINDOWS):
        for i, value in enumerate(NATS[index]):
            expected.setdefault((index, (start + 1 + i) // 64 * 64), []).append(value)
    rows = list(zip(WHOLE.window.tolist(), WHOLE.block_start.tolist(), strict=True))
    assert rows == sorted(expected)
    assert WHOLE.count.tolist() == [len(expected[row]) for row in rows]
    for name, function in zip(SUMS, (lambda x: x, lambda x: x - 0.01, lambda x: x * x), strict=True):
        sums = [math.fsum(map(function, expected[row])) for row in rows]
        np.testing.assert_allclose(getattr(WHOLE, name), sums, rtol=1e-12)
    assert WHOLE.excluded == {"first base of its window": 3}
    assert [WHOLE.contigs[i] for i in WHOLE.contig] == ["chr1" if w < 2 else "chr2" for w, _ in rows]


@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_parts_in_any_order_add_up_to_the_whole(random, ranks: int, pieces: int) -> None:  # type: ignore[no-untyped-def]
    cut: list[tuple[int, np.ndarray]] = []
    for index, nats in enumerate(NATS):
        order = np.random.default_rng(random.randrange(1 << 30)).permutation(len(nats))
        cut += [(index, part) for part in np.array_split(order, pieces) if len(part)]
    random.shuffle(cut)
    ledgers = scattered([cut[rank::ranks] for rank in range(ranks) if cut[rank::ranks]])
    random.shuffle(ledgers)
    same(merge_all(ledgers), WHOLE)
    same(reduce(lambda total, part: merge(part, total), reversed(ledgers)), WHOLE)


def test_merging_is_associative_and_commutative_whatever_the_contig_lists() -> None:
    a = make_ledger(WINDOWS[:1], NATS[:1], created="b", command="x")
    b = make_ledger([("chr9", 0, 300)], losses([("chr9", 0, 300)], 5), created="a", command="y")
    c = make_ledger([("chr0", 64, 500)], losses([("chr0", 64, 500)], 6), command="z", rank=3)
    a, b, c = (_with_index(ledger, index) for index, ledger in enumerate((a, b, c)))
    one, two = merge(merge(a, b), c), merge(merge(c, b), a)
    same(one, two)
    same(one, merge(a, merge(b, c)))
    assert one.header == two.header == merge(b, merge(c, a)).header
    assert one.header["created"] == "2026-12-01T00:00:00+00:00" and one.header["rank"] == 3
    assert [one.contigs[i] for i in one.windows[:, 1]] == ["chr1", "chr9", "chr0"]
    assert one.totals().count == sum(part.totals().count for part in (a, b, c))


def _with_index(ledger: Ledger, index: int) -> Ledger:
    ledger.windows[:, 0] = ledger.window[:] = index
    return ledger


def test_a_base_is_never_counted_twice() -> None:
    with pytest.raises(InputError, match="counted twice"):
        merge(WHOLE, WHOLE)
    builder = LedgerBuilder(HEADER, ["chr1"], 64)
    builder.window(0, "chr1", 10, 90)
    once = np.ones(5)
    builder.add(0, "chr1", np.arange(20, 25), once, once)
    with pytest.raises(ValueError, match="base 24 of chr1 was counted before"):
        builder.add(0, "chr1", np.arange(24, 29), once, once)
    with pytest.raises(ValueError, match="base 30 of chr1 was counted before"):
        builder.add(0, "chr1", np.array([30, 31, 30, 33, 34]), once, once)
    builder.add(0, "chr1", np.arange(25, 30), once, once)
    assert builder.build().totals().count == 10


@pytest.mark.parametrize(
    ("index", "contig", "positions"),
    [(0, "chr1", [9]), (0, "chr1", [90]), (0, "chr2", [20]), (1, "chr1", [20])],
)
def test_bases_outside_their_window_are_refused(index: int, contig: str, positions: list[int]) -> None:
    builder = LedgerBuilder(HEADER, ["chr1", "chr2"], 64)
    builder.window(0, "chr1", 10, 90)
    with pytest.raises(ValueError):
        builder.add(index, contig, np.array(positions), np.ones(1), np.ones(1))


def test_a_window_is_announced_once_and_on_a_known_contig() -> None:
    builder = LedgerBuilder(HEADER, ["chr1"])
    builder.window(0, "chr1", 10, 90)
    for call in ((0, "chr1", 10, 90), (1, "chr2", 0, 5), (1, "chr1", 5, 5)):
        with pytest.raises(ValueError):
            builder.window(*call)


def test_a_loss_that_is_not_a_number_stops_everything() -> None:
    builder = LedgerBuilder(HEADER, ["chr1"])
    builder.window(0, "chr1", 10, 90)
    with pytest.raises(GenoctxError, match="chr1:22 is nan"):
        builder.add(0, "chr1", np.arange(20, 23), np.array([1, np.nan, 1]), np.ones(3))
    with pytest.raises(GenoctxError, match="chr1:23 is inf"):
        builder.add(0, "chr1", np.arange(20, 23), np.ones(3), np.array([1, 1, np.inf]))


def test_totals_divide_once() -> None:
    totals = WHOLE.totals()
    everything = np.concatenate(NATS)
    assert totals.count == len(everything) and totals.windows == 3
    assert totals.bits_full == pytest.approx(everything.mean() / math.log(2), rel=1e-12)
    assert totals.bits_acgt == pytest.approx((everything - 0.01).mean() / math.log(2), rel=1e-12)
    assert bits_per_base(10 * math.log(4), 10) == 2.0
    with pytest.raises(InputError, match="no base was scored"):
        _ = LedgerBuilder(HEADER, []).build().totals().bits_full


@pytest.mark.parametrize("key", ["checkpoint", "windows_digest", "store_digest", "split", "step", "context"])
def test_two_evaluations_do_not_merge(key: str) -> None:
    other = make_ledger([("chr1", 2000, 2100)], losses([("chr1", 2000, 2100)], 3), **{key: "another"})
    with pytest.raises(InputError, match=key):
        merge(WHOLE, other)


def test_one_index_is_one_window() -> None:
    with pytest.raises(InputError, match="two different windows"):
        merge(WHOLE, make_ledger([("chr1", 2000, 2100)], losses([("chr1", 2000, 2100)], 3)))


def test_files_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.npz"
    WHOLE.save(path)
    back = Ledger.load(path)
    assert back.header == WHOLE.header == {**HEADER, "schema": 2}
    assert back.contigs == WHOLE.contigs and back.excluded == WHOLE.excluded and back.block == WHOLE.block
    for name in ("windows", "contig", "window", "block_start", "count", *SUMS):
        assert getattr(back, name).tobytes() == getattr(WHOLE, name).tobytes(), name
    first = path.read_bytes()
    back.save(path)
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == ["ledger.npz"]


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.npz"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        WHOLE.save(path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["ledger.npz"]


def test_broken_files_are_named_never_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.npz"
    with pytest.raises(InputError, match="does not exist"):
        Ledger.load(path)
    WHOLE.save(path)
    data = path.read_bytes()
    for size in [0, 1, 100, *range(200, len(data), 487), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(InputError, match=r"ledger\.npz"):
            Ledger.load(path)
    for at in range(0, len(data), 53):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        # a byte between the archive's members may go unnoticed, a number may not
        with contextlib.suppress(InputError):
            same(Ledger.load(path), WHOLE)


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.ones(3))
    with pytest.raises(InputError, match="not a genoctx-ledger file"):
        Ledger.load(path)
    np.savez(path, kind=np.array(["genoctx-ledger"], dtype=object))
    with pytest.raises(InputError):
        Ledger.load(path)
    newer = make_ledger(WINDOWS, NATS)
    newer.header["schema"] = 3
    newer.save(path)
    with pytest.raises(InputError, match="schema 3"):
        Ledger.load(path)


def test_files_of_schema_1_are_read(tmp_path: Path) -> None:
    """As genoctx wrote them before there were strata."""
    path = tmp_path / "ledger.npz"
    meta = {
        "header": {**HEADER, "schema": 1},
        "contigs": WHOLE.contigs,
        "block": 64,
        "excluded": WHOLE.excluded,
    }
    columns = ("windows", "contig", "window", "block_start", "count", *SUMS)
    write_npz(path, "genoctx-ledger", meta, {name: getattr(WHOLE, name) for name in columns})
    old = Ledger.load(path)
    assert (old.strata, old.positions, old.calibration) == (None, None, None)
    assert old.totals() == WHOLE.totals()
    with pytest.raises(InputError, match="schema is 1 and 2"):
        merge(old, WHOLE)
    old.save(path)
    assert Ledger.load(path).totals() == WHOLE.totals()


def test_a_window_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    ledger = make_ledger(WINDOWS, NATS)
    ledger.windows[1] = ledger.windows[0]
    ledger.save(tmp_path / "x.npz")
    with pytest.raises(InputError, match="a window that is there twice"):
        Ledger.load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("count", 65, "counted twice"),
        ("count", 0, "without bases"),
        ("window", 7, "not in the window table"),
        ("block_start", 63, "contig and blocks"),
        ("contig", 1, "contig and blocks"),
        ("nats_full_sum", float("nan"), "not a number"),
        ("block_start", 192, "a block that has two"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, column: str, value: float, words: str) -> None:
    ledger = make_ledger(WINDOWS, NATS)
    getattr(ledger, column)[1] = value
    ledger.save(tmp_path / "x.npz")
    with pytest.raises(InputError, match=words):
        Ledger.load(tmp_path / "x.npz")
