"""k-mers against strings, one at a time."""

import numpy as np
import pytest
from genome_helpers import fasta
from hypothesis import given, settings
from hypothesis import strategies as st

from genoctx.errors import UsageError
from genoctx.genome.alphabet import LETTERS, encode, reverse_complement
from genoctx.genome.kmers import canonical_kmers, mix, read_pieces
from genoctx.genome.store import ingest

OPPOSITE = str.maketrans("ACGT", "TGCA")
DIGITS = str.maketrans("ACGT", "0123")

ks = st.integers(11, 31)
# runs of bases with an odd letter here and there; of an alphabet, hypothesis would draw all letters alike
runs = st.text(alphabet="ACGT", min_size=1, max_size=50)
mostly_bases = st.lists(runs | st.sampled_from(LETTERS.decode()), max_size=6).map("".join)


def number(kmer):
    """The canonical k-mer as a number in base 4; None if it has a letter other than A C G T."""
    if set(kmer) - set("ACGT"):
        return None
    return min(int(strand.translate(DIGITS), 4) for strand in (kmer, kmer.translate(OPPOSITE)[::-1]))


def numbers(bases, k):
    return [number(bases[i : i + k]) for i in range(len(bases) - k + 1)]


def found(codes, k):
    kmers, counts = canonical_kmers(codes, k)
    assert (kmers.dtype, counts.dtype) == (np.uint64, bool)
    return [int(kmer) if real else None for kmer, real in zip(kmers, counts, strict=True)]


@given(mostly_bases, ks)
def test_kmers_are_those_of_the_text(bases, k):
    assert found(encode(bases.encode()), k) == numbers(bases, k)


@given(mostly_bases, ks)
def test_both_strands_have_the_same_kmers(bases, k):
    codes = encode(bases.encode())
    assert found(reverse_complement(codes), k) == found(codes, k)[::-1]


def test_the_largest_number_fits():
    assert found(encode(b"C" * 31), 31) == [int("1" * 31, 4)]
    assert found(encode(b"AG" * 15 + b"A"), 31) == [int("02" * 15 + "0", 4)]
    assert found(encode(b"T" * 31), 31) == [0]


@pytest.mark.parametrize("k", [-1, 0, 10, 32, 64])
def test_other_lengths_are_refused(k):
    with pytest.raises(UsageError, match=f"k-mers of {k} bases") as caught:
        canonical_kmers(encode(b"ACGT" * 20), k)
    assert "11 and 31" in caught.value.hint


def test_the_hash_is_splitmix64():
    """The first outputs of the published generator for seed 0; a change would change every sample."""
    gamma = 0x9E3779B97F4A7C15
    states = np.array([0, gamma, 2 * gamma % 2**64], dtype=np.uint64)
    assert mix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_hash_spreads_low_complexity():
    """One in 64 of the 31-mers with a single odd base, whatever bits they differ in."""
    plain = np.zeros(31, dtype=np.uint8)
    kmers = []
    for base in range(4):
        for at in range(31):
            for other in range(4):
                for second in range(at, 31):
                    codes = plain + np.uint8(base)
                    codes[at] = codes[second] = other
                    kmers.append(canonical_kmers(codes, 31)[0][0])
    different = np.unique(np.array(kmers))
    hashes = mix(different.copy())
    assert np.unique(hashes).size == different.size > 2000
    for bits in (hashes >> np.uint64(58), hashes & np.uint64(63)):
        counts = np.bincount(bits.astype(int), minlength=64)
        assert abs(counts - different.size / 64).max() < 5 * np.sqrt(different.size / 64)


@given(st.lists(mostly_bases.filter(len), min_size=1, max_size=4), ks, st.integers(1, 200), st.data())
@settings(max_examples=80)
def test_pieces_of_any_size_have_each_kmer_of_each_region_once(tmp_path_factory, records, k, size, data):
    folder = tmp_path_factory.mktemp("pieces")
    genome = {f"c{i}": bases for i, bases in enumerate(records)}
    (folder / "g.fa").write_bytes(fasta(genome))
    store = ingest(folder / "g.fa", folder / "store")
    regions, expected = [], []
    for contig in store.contigs:
        bases, start = genome[contig.name], 0
        while start < contig.length and data.draw(st.booleans()):
            start = data.draw(st.integers(start, contig.length - 1))
            end = data.draw(st.integers(start + 1, contig.length))
            regions.append((contig.name, start, end))
            kmers = numbers(bases[start:end], k)
            expected += [
                (contig.offset + start + i, kmer) for i, kmer in enumerate(kmers) if kmer is not None
            ]
            start = end + 1
    seen = []
    read = 0
    for piece in read_pieces(store, regions, k, size):
        assert piece.codes.size <= max(size, 2 * k)
        kmers, counts = canonical_kmers(piece.codes, k)
        at = np.flatnonzero(counts)
        seen += zip(piece.places(at).tolist(), kmers[at].tolist(), strict=True)
        read += piece.bases
    assert seen == expected
    assert read == sum(end - start for _, start, end in regions)
