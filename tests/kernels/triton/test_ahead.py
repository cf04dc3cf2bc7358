"""The measuring tool itself: it sees spilled registers, and it refuses a variant that does not describe its kernel."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from ahead import TARGETS, Variant, assert_fits, compile_ahead


@triton.jit
def share_of_total(x_ptr, y_ptr, ROWS: tl.constexpr):
    """One warp holds ROWS x 64 numbers until it knows their sum: more than 255 a thread do not fit."""
    at = tl.arange(0, ROWS)[:, None] * 64 + tl.arange(0, 64)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, x / tl.sum(tl.sum(x, 1), 0))


def variant(rows: int, **constants: int) -> Variant:
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    return Variant("test_ahead:share_of_total", types, {"ROWS": rows, **constants}, warps=1)


def test_few_numbers_fit_and_many_spill() -> None:
    assert_fits([variant(16)])
    assert [b.target for b in compile_ahead([variant(16)])] == list(TARGETS)
    with pytest.raises(AssertionError, match="spills above 0 bytes"):
        assert_fits([variant(128)])


def test_a_variant_names_every_argument() -> None:
    with pytest.raises(AssertionError, match="disagree about \\['WIDTH'\\]"):
        compile_ahead([variant(16, WIDTH=1)])
