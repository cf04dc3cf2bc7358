"""Ledgers of contexts: additive rows, the same bases at every context, and checks when read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_data import HEADER

from genoctx.errors import GenoctxError, InputError
from genoctx.report.context_ledger import ContextBuilder, ContextLedger, piece_starts
from genoctx.report.ledger import Ledger

CONTEXTS = (128, 512)
PLACES = {4: ("chr2", 100, 612), 1: ("chr1", 64, 576)}
LATE = np.delete(np.arange(256, 512), [0, 77, 78])
"""Offsets of scored bases: the second half, but three."""


def build(contexts: tuple[int, ...] = CONTEXTS, drop: int = 0) -> ContextLedger:
    builder = ContextBuilder(HEADER, ["chr1", "chr2"], contexts, 64)
    for number in range(len(contexts)):
        for index, place in PLACES.items():
            rng = np.random.default_rng(index)
            late = LATE[: len(LATE) - drop * number]
            seen = rng.random(len(late)) < 0.3
            nats = rng.uniform(0, 2, len(late)) / (number + 1)
            builder.add(number, index, place, place[1] + late, seen, nats)
    return builder.build()


def test_rows_are_sums_by_context_window_block_and_seen() -> None:
    expected: dict[tuple[int, int, int, int], list[float]] = {}
    for number in range(2):
        for index, (_, start, _) in PLACES.items():
            rng = np.random.default_rng(index)
            seen, nats = rng.random(len(LATE)) < 0.3, rng.uniform(0, 2, len(LATE)) / (number + 1)
            for offset, s, n in zip(LATE.tolist(), seen.tolist(), nats.tolist(), strict=True):
                key = (number, index, (start + offset) // 64 * 64, int(s))
                expected.setdefault(key, []).append(n)
    made = build()
    keys = list(zip(made.context, made.window, made.block_start, made.seen, strict=True))
    assert keys == sorted(expected)
    assert made.count.tolist() == [len(expected[key]) for key in sorted(expected)]
    np.testing.assert_allclose(made.nats_acgt_sum, [sum(expected[k]) for k in sorted(expected)], rtol=1e-12)
    assert [made.contigs[i] for i in made.contig] == ["chr1" if w == 1 else "chr2" for w in made.window]
    assert made.windows.tolist() == [[1, 0, 64, 576], [4, 1, 100, 612]]


def test_files_come_back(tmp_path: Path) -> None:
    made = build()
    made.save(tmp_path / "contexts.npz")
    back = ContextLedger.load(tmp_path / "contexts.npz")
    assert back.contexts == CONTEXTS and back.contigs == made.contigs
    assert back.header == {**HEADER, "schema": 1}
    for name in ("windows", "context", "window", "contig", "block_start", "seen", "count", "nats_acgt_sum"):
        assert getattr(back, name).tobytes() == getattr(made, name).tobytes(), name
    with pytest.raises(InputError, match="genoctx-contexts"):
        Ledger.load(tmp_path / "contexts.npz")
    made.header["schema"] = 2
    made.save(tmp_path / "contexts.npz")
    with pytest.raises(InputError, match="schema 2"):
        ContextLedger.load(tmp_path / "contexts.npz")


@pytest.mark.parametrize(
    ("column", "row", "value", "words"),
    [
        ("count", 0, 1, "context 128 has other bases than 512"),
        ("count", -1, 65, "counted twice"),
        ("count", 0, 0, "without bases"),
        ("seen", 0, 2, "neither seen nor novel"),
        ("seen", 0, 1, "not sorted"),
        ("context", 0, 2, "not listed"),
        ("window", -1, 5, "not in the window table"),
        ("contig", 0, 1, "contig and blocks"),
        ("nats_acgt_sum", 0, float("nan"), "not a number"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    tmp_path: Path, column: str, row: int, value: float, words: str
) -> None:
    broken = build()
    getattr(broken, column)[row] = value
    broken.save(tmp_path / "x.npz")
    with pytest.raises(InputError, match=words):
        ContextLedger.load(tmp_path / "x.npz")


def test_contexts_have_the_same_bases() -> None:
    with pytest.raises(GenoctxError, match="context 128 has other bases"):
        build(drop=1)
    with pytest.raises(GenoctxError, match="not as long as the longest context"):
        build((128, 1024))
    with pytest.raises(GenoctxError, match="do not ascend"):
        build((512, 512))


def test_a_window_is_added_once_at_each_context() -> None:
    builder = ContextBuilder(HEADER, ["chr1"], CONTEXTS, 64)
    place, one = ("chr1", 0, 512), (np.array([300]), np.array([False]), np.ones(1))
    builder.add(0, 0, place, *one)
    with pytest.raises(ValueError, match="before at context 128"):
        builder.add(0, 0, place, *one)
    with pytest.raises(ValueError, match="before"):
        builder.add(1, 0, ("chr1", 512, 1024), *one)
    with pytest.raises(GenoctxError, match=r"chr1:302 is not a number"):
        builder.add(1, 0, place, np.array([300, 301]), np.zeros(2, bool), np.array([1, np.nan]))


def with_baseline(adaptive: bool = True) -> ContextBuilder:
    builder = ContextBuilder(HEADER, ["chr1"], CONTEXTS, 64)
    for number in range(2):
        nats = np.linspace(0.5, 1.5, len(LATE)) - number / 4
        seen = LATE % 2 == 0
        builder.add(number, 0, ("chr1", 0, 512), LATE, seen, nats, 2 * nats if adaptive else None)
    return builder


def test_the_baseline_stands_beside_the_loss_where_it_was_added(tmp_path: Path) -> None:
    made = with_baseline().build()
    assert made.adaptive_nats_sum is not None
    np.testing.assert_allclose(made.adaptive_nats_sum, 2 * made.nats_acgt_sum, rtol=1e-14)
    made.save(tmp_path / "x.npz")
    back = ContextLedger.load(tmp_path / "x.npz").adaptive_nats_sum
    assert back is not None and back.tobytes() == made.adaptive_nats_sum.tobytes()
    bare = with_baseline(adaptive=False).build()
    assert bare.adaptive_nats_sum is None
    bare.save(tmp_path / "bare.npz")
    assert ContextLedger.load(tmp_path / "bare.npz").adaptive_nats_sum is None


@pytest.mark.parametrize(("value", "words"), [(np.nan, "not a number"), (None, "different lengths")])
def test_a_baseline_that_cannot_be_is_refused(tmp_path: Path, value: float | None, words: str) -> None:
    made = with_baseline().build()
    assert made.adaptive_nats_sum is not None
    broken = made.adaptive_nats_sum[1:] if value is None else made.adaptive_nats_sum.copy()
    broken[0] = broken[0] if value is None else value
    dataclasses.replace(made, adaptive_nats_sum=broken).save(tmp_path / "x.npz")
    with pytest.raises(InputError, match=words):
        ContextLedger.load(tmp_path / "x.npz")


def test_the_baseline_is_added_always_or_never() -> None:
    builder = with_baseline()
    for number in range(2):
        builder.add(number, 1, ("chr1", 512, 1024), 512 + LATE, LATE % 2 == 0, np.ones(len(LATE)))
    with pytest.raises(ValueError):
        builder.build()


@given(st.integers(1, 9), st.integers(0, 4))
def test_pieces_make_up_the_second_half_once(log_context: int, more: int) -> None:
    context, length = 1 << log_context, 1 << log_context + more
    late = [
        i for start in piece_starts(length, context) for i in range(start + context // 2, start + context)
    ]
    assert late == list(range(length // 2, length))


def test_nothing_is_a_ledger_too() -> None:
    empty = ContextBuilder(HEADER, ["chr1"], CONTEXTS).build()
    assert empty.problem() == "" and len(empty.count) == 0
