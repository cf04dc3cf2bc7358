"""Where a byte stands in a text that comes in parts: lines end with LF, CRLF or CR, even mixed."""

from __future__ import annotations

import re

import numpy as np

LINE_END = re.compile(rb"[\r\n]")

_LONG = 4096  # bytes from which numpy counts faster than bytes.count, which goes byte by byte


def count_byte(text: bytes, byte: bytes) -> int:
    """How often the single ``byte`` occurs in ``text``."""
    if len(text) < _LONG:
        return text.count(byte)
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == byte[0]))


def count_lines(text: bytes) -> int:
    """Line ends in ``text``: LF, CRLF or CR, each once."""
    count = count_byte(text, b"\n")
    if b"\r" in text:
        count += count_byte(text, b"\r") - text.count(b"\r\n")
    return count


def advance(text: bytes, line: int, column: int) -> tuple[int, int]:
    """Line (from 1) and column (bytes before it in the line) of the end of ``text``, from those of its begin."""
    last = max(text.rfind(b"\n"), text.rfind(b"\r"))
    return line + count_lines(text), len(text) - 1 - last if last >= 0 else column + len(text)
