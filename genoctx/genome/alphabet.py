"""The nucleotide alphabet: one byte per base, lossless for every IUPAC letter.

Codes 0..3 are A C G T, 4 is N, 5..14 are the other ambiguity letters in the order of ``LETTERS``.
U is written as T; case is not part of a code (the store keeps it as a mask of its own).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LETTERS = b"ACGTNRYSWKMBDHV"
"""The letter of each code."""

N_CODE = 4
ILLEGAL = 255
BLANKS = b" \t\r\n\v\f"
"""Bytes that separate but never are a base."""
GAPS = b"-.~"
"""Bytes that stand for "no base here" in an alignment."""
LOWER = 16
URACIL = 32

_PAIRS = b"ATCGRYKMBVDH"  # each letter beside its complement; N, S and W are their own


def _code_table() -> bytes:
    table = bytearray([ILLEGAL]) * 256
    for code, letter in enumerate(LETTERS):
        table[letter] = table[letter | 0x20] = code
    table[ord("U")] = table[ord("u")] = LETTERS.index(b"T")
    return bytes(table)


def _packed_table() -> bytes:
    table = bytearray(_code_table())
    for letter in LETTERS.lower() + b"u":
        table[letter] |= LOWER
    for letter in b"Uu":
        table[letter] |= URACIL
    return bytes(table)


def _complement_table() -> np.ndarray:
    table = np.arange(len(LETTERS), dtype=np.uint8)
    for first, second in zip(_PAIRS[::2], _PAIRS[1::2], strict=True):
        a, b = LETTERS.index(first), LETTERS.index(second)
        table[a], table[b] = b, a
    table.flags.writeable = False
    return table


CODE_TABLE = _code_table()
"""256 bytes for ``bytes.translate``: byte to code, ``ILLEGAL`` for everything that is no base."""

PACKED_TABLE = _packed_table()
"""Like ``CODE_TABLE`` with the writing beside the code: ``+ LOWER`` in lower case, ``+ URACIL`` for a U.
``ILLEGAL`` stays the greatest value, so one maximum tells a wrong byte, a U and plain text apart."""

COMPLEMENT = _complement_table()
"""uint8, one entry per code: the code of the opposite strand."""

_LETTER_TABLE = LETTERS + b"?" * (256 - len(LETTERS))


def encode(letters: bytes) -> np.ndarray:
    """Codes (uint8, read-only) of ``letters``, either case; bytes that are no base give ``ILLEGAL``."""
    return np.frombuffer(letters.translate(CODE_TABLE), dtype=np.uint8)


def decode(codes: np.ndarray) -> bytes:
    """Upper-case letters of uint8 ``codes``."""
    return np.ascontiguousarray(codes, dtype=np.uint8).tobytes().translate(_LETTER_TABLE)


def reverse_complement(codes: np.ndarray) -> np.ndarray:
    """The opposite strand, read in its own direction: a new uint8 array."""
    return COMPLEMENT[codes[::-1]]


def count_codes(codes: np.ndarray) -> np.ndarray:
    """How often each code occurs in uint8 ``codes``: int64 [15]."""
    counts = np.zeros(len(LETTERS), dtype=np.int64)
    if codes.size:
        # comparing and counting is vectorised; bincount would first widen every byte to int64
        for code in range(int(codes.max()) + 1):
            counts[code] = np.count_nonzero(codes == code)
    return counts


def gc_fraction(counts: np.ndarray | Sequence[int]) -> float:
    """(C + G) / (A + C + G + T) of the counts of ``count_codes``; 0.0 where there is none of these."""
    total = int(sum(counts[:4]))
    return int(counts[1] + counts[2]) / total if total else 0.0
