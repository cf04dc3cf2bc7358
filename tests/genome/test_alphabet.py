import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genoctx.genome.alphabet import (
    COMPLEMENT,
    ILLEGAL,
    LETTERS,
    count_codes,
    decode,
    encode,
    gc_fraction,
    reverse_complement,
)

IUPAC_PAIRS = {
    "A": "T", "C": "G", "R": "Y", "K": "M", "B": "V", "D": "H", "N": "N", "S": "S", "W": "W",
}  # fmt: skip

codes = st.lists(st.integers(0, 14), max_size=200).map(lambda c: np.array(c, dtype=np.uint8))


def test_codes_of_the_four_bases_and_n_are_fixed():
    assert encode(b"ACGTN").tolist() == [0, 1, 2, 3, 4]
    assert LETTERS[5:] == b"RYSWKMBDHV"


def test_every_letter_survives_in_both_cases_and_u_is_t():
    assert decode(encode(LETTERS)) == LETTERS
    assert decode(encode(LETTERS.lower())) == LETTERS
    assert decode(encode(b"Uu")) == b"TT"


def test_every_other_byte_is_illegal():
    good = set(LETTERS + LETTERS.lower() + b"Uu")
    found = encode(bytes(range(256)))
    assert [b for b in range(256) if found[b] != ILLEGAL] == sorted(good)


@pytest.mark.parametrize(
    ("letter", "other"), [*IUPAC_PAIRS.items(), *((b, a) for a, b in IUPAC_PAIRS.items())]
)
def test_complement_follows_iupac(letter, other):
    assert decode(COMPLEMENT[encode(letter.encode())]) == other.encode()


def test_reverse_complement_reads_the_other_strand():
    assert decode(reverse_complement(encode(b"AACGTNR"))) == b"YNACGTT"


@given(codes)
def test_reverse_complement_twice_is_the_same_strand(sequence):
    assert np.array_equal(reverse_complement(reverse_complement(sequence)), sequence)


@given(codes)
def test_counts_agree_with_bincount(sequence):
    counts = count_codes(sequence)
    assert counts.tolist() == np.bincount(sequence, minlength=15).tolist()
    assert counts.dtype == np.int64


def test_gc_ignores_everything_but_the_four_bases():
    assert gc_fraction(count_codes(encode(b"GCANNNSS"))) == 2 / 3
    assert gc_fraction(count_codes(encode(b"NNN"))) == 0.0
