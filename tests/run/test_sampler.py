"""The sampler is a pure function of (seed, step)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genoctx.run.sampler import is_reversed, windows_for_step


@given(n=st.integers(1, 40), seed=st.integers(0, 2**40), per_step=st.integers(1, 9))
def test_every_epoch_shows_every_window_once(n: int, seed: int, per_step: int) -> None:
    seen: dict[int, list[int]] = {}
    for step in range(2 * n):
        for epoch, window in windows_for_step(n, seed, step, per_step):
            seen.setdefault(epoch, []).append(window)
    whole = [epoch for epoch, windows in seen.items() if len(windows) == n]
    assert len(whole) >= 2
    assert all(sorted(seen[epoch]) == list(range(n)) for epoch in whole)


@given(n=st.integers(1, 40), seed=st.integers(0, 99), step=st.integers(0, 50))
def test_accumulation_does_not_change_the_order(n: int, seed: int, step: int) -> None:
    """8 windows in one step are the same 8 as in eight steps of one."""
    at_once = windows_for_step(n, seed, step, 8)
    one_by_one = [windows_for_step(n, seed, 8 * step + i, 1)[0] for i in range(8)]
    assert at_once == one_by_one


def test_epochs_and_seeds_differ() -> None:
    first = windows_for_step(50, 0, 0, 50)
    assert [w for _, w in windows_for_step(50, 0, 1, 50)] != [w for _, w in first]
    assert windows_for_step(50, 1, 0, 50) != first


def test_the_order_is_fixed_for_ever() -> None:
    """A change here silently changes every resumed run."""
    assert windows_for_step(10, 0, 0, 12) == [
        (0, 6),
        (0, 3),
        (0, 8),
        (0, 1),
        (0, 4),
        (0, 5),
        (0, 9),
        (0, 2),
        (0, 7),
        (0, 0),
        (1, 5),
        (1, 3),
    ]
    assert [is_reversed(0, 0, w) for w in range(12)] == [
        True,
        True,
        False,
        False,
        False,
        False,
        True,
        False,
        True,
        False,
        True,
        True,
    ]


def test_another_process_draws_the_same() -> None:
    code = "from genoctx.run.sampler import windows_for_step as w; print(w(1000, 7, 123, 4))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(windows_for_step(1000, 7, 123, 4))


def test_reversal_is_a_fair_coin_that_differs_by_epoch() -> None:
    coins = [[is_reversed(3, epoch, window) for window in range(1000)] for epoch in (0, 1)]
    assert all(430 < sum(c) < 570 for c in coins)
    assert 430 < sum(a != b for a, b in zip(*coins, strict=True)) < 570


def test_no_windows_is_an_error() -> None:
    with pytest.raises(ValueError, match="no window"):
        windows_for_step(0, 0, 0, 1)
