"""Anchors against a naive search, and the warning of contigs that are copies, on real human sequence."""

import gzip
import itertools
import random

import numpy as np
import pytest
from genome_helpers import GENOMES, fasta
from hypothesis import given
from hypothesis import strategies as st

import genoctx.genome.anchors as anchors_module
from genoctx.genome.alphabet import LETTERS, decode, encode, reverse_complement
from genoctx.genome.anchors import Anchors, K, find_word
from genoctx.genome.store import ingest

WORD = b"TGATCA"


def human(name):
    return b"".join(gzip.open(GENOMES / f"human_hg19_{name}.fa.gz").read().split(b"\n")[1:]).decode().upper()


@pytest.fixture(scope="module")
def chr3():
    return human("chr3_42M")


@pytest.fixture(scope="module")
def chr5():
    return human("chr5_124M")


def mutated(text, rate, seed=0):
    """Substitutions, insertions and deletions of one base, a third each."""
    draw = random.Random(seed)
    out = []
    for base in text:
        chance = draw.random()
        if chance < rate / 3:
            out.append(draw.choice([other for other in "ACGT" if other != base]))
        elif chance < 2 * rate / 3:
            out.append(base + draw.choice("ACGT"))
        elif chance > rate:
            out.append(base)
    return "".join(out)


def opposite(text):
    return decode(reverse_complement(encode(text.encode()))).decode()


def said(folder, records):
    (folder / "g.fa").write_bytes(fasta(records, width=80))
    return [text for text in ingest(folder / "g.fa", folder / "s", force=True).warnings if "another" in text]


# anchors


def naive(text):
    """The k-mers around each word, as the smaller of both strands."""
    found = set()
    at = text.find(WORD)
    while at >= 0:
        kmer = text[max(0, at - 12) : at + 18]
        if at >= 12 and len(kmer) == K and not set(kmer) - set(b"ACGT"):
            found.add(min(kmer, opposite(kmer.decode()).encode()))
        at = text.find(WORD, at + 1)
    return found


def sample(pieces, begins):
    """Anchors of contigs that came in ``pieces``; contig n begins with piece ``begins[n]``."""
    anchors = Anchors()
    for number, piece in enumerate(pieces):
        start = np.array([0] if number in begins else [], dtype=np.int64)
        anchors.add(encode(piece), start)
    anchors.settle()
    return list(zip(anchors.contig.tolist(), anchors.hash.tolist(), strict=True))


dense = st.lists(
    st.sampled_from([WORD, WORD, b"ACGGT", b"T", b"GATTACAGG", b"N", b"ttgca"]), max_size=30
).map(b"".join)


@given(dense)
def test_the_word_is_found_wherever_it_is(text):
    want = [at for at in range(len(text)) if text.upper()[at : at + 6] == WORD]
    assert sorted(find_word(encode(text)).tolist()) == want


@given(dense, st.lists(st.integers(1, 50), max_size=40))
def test_anchors_do_not_depend_on_the_pieces(text, cuts):
    whole = sample([text], {0}) if text else []
    assert len(whole) == len(naive(text.upper()))
    edges = [0, *(edge for edge in np.cumsum(cuts).tolist() if edge < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges) if a < b]
    assert (sample(pieces, {0}) if pieces else []) == whole


@given(dense)
def test_both_strands_have_the_same_anchors(text):
    if text:
        other = opposite(text.decode()).encode()
        assert sample([text], {0}) == sample([other], {0})


@given(st.lists(dense.filter(bool), min_size=1, max_size=6))
def test_an_anchor_never_spans_two_contigs(texts):
    together = sample(texts, set(range(len(texts))))
    apart = [(number, value) for number, text in enumerate(texts) for _, value in sample([text], {0})]
    assert sorted(together) == sorted(apart)
    joined, begins = encode(b"".join(texts)), np.cumsum([0, *map(len, texts[:-1])])
    anchors = Anchors()
    anchors.add(joined, begins)
    anchors.settle()
    assert list(zip(anchors.contig.tolist(), anchors.hash.tolist(), strict=True)) == together


def test_the_limit_keeps_the_same_anchors_in_any_order(monkeypatch, chr3, chr5):
    monkeypatch.setattr(anchors_module, "LIMIT", 200)
    parts = [part.encode() for text in (chr3[:300_000], chr5[:300_000]) for part in (text, text[:150_000])]
    serial, merged = Anchors(), Anchors()
    for part in parts:
        serial.add(encode(part), np.array([0]))
        worker = Anchors()
        worker.add(encode(part), np.array([0]))
        merged.merge(worker)
    serial.settle()
    assert 100 < serial.hash.size <= 200
    assert np.array_equal(serial.hash, merged.hash)
    assert np.array_equal(serial.contig, merged.contig)


# what ingest says


def test_unrelated_contigs_are_no_twins(tmp_path, chr3, chr5):
    assert said(tmp_path, {"chr3": chr3, "chr5": chr5, "chr4": human("chr4_103M")}) == []
    halves = {"a0": chr3[:1_000_000], "a1": chr3[1_000_000:], "b0": chr5[:1_000_000], "b1": chr5[1_000_000:]}
    assert said(tmp_path, halves) == []


@pytest.mark.parametrize("rate", [0.0001, 0.001, 0.01])
@pytest.mark.parametrize("turn", [str, opposite])
def test_a_haplotype_is_a_twin(tmp_path, chr3, chr5, rate, turn):
    warnings = said(tmp_path, {"hap1": chr3, "other": chr5, "hap2": turn(mutated(chr3, rate)).lower()})
    (text,) = warnings
    assert text.startswith("1 contigs are nearly identical to another or a part of it (hap1 and hap2, about ")
    assert "--skip" in text
    identity = float(text.split("about ")[1].split(" ")[0])
    assert abs(identity - 100 * (1 - rate)) < 0.15


def test_a_part_of_a_contig_is_a_twin(tmp_path, chr3, chr5):
    warnings = said(tmp_path, {"alt": mutated(chr3[900_000:1_100_000], 0.002), "chr5": chr5, "chr3": chr3})
    assert len(warnings) == 1
    assert "(alt and chr3, about 99." in warnings[0]


def test_distant_relatives_are_no_twins(tmp_path, chr3):
    assert said(tmp_path, {"a": chr3, "b": mutated(chr3, 0.05)}) == []


def test_equal_contigs(tmp_path, chr5):
    warnings = said(
        tmp_path, {"a": "ACGTTGCA" * 10, "b": chr5, "c": "acgttgca" * 10, "d": chr5, "e": chr5, "f": "GAT"}
    )
    assert len(warnings) == 1
    assert warnings[0].startswith("3 contigs have the same bases as another (a = c, b = d = e): ")
    assert said(tmp_path, {"a": "GATTACA", "b": "GATTACA"}) == []


def test_many_haplotypes_are_found_through_the_index(tmp_path, chr3):
    records = {f"h{n}": mutated(chr3[:200_000], 0.001, n) for n in range(12)}
    (text,) = said(tmp_path, records)
    assert text.startswith("11 contigs are nearly identical")
    assert text.count(" and ") == 5


# lower case


def test_contigs_that_are_all_lower_case(tmp_path):
    (tmp_path / "g.fa").write_bytes(
        fasta({"a": "ACGT" * 30, "b": "gattaca" * 9, "c": "acgtA", "d": "acgt" * 9})
    )
    warnings = ingest(tmp_path / "g.fa", tmp_path / "s").warnings
    assert warnings == (
        "2 of 4 contigs (99 bases) are more than 95 % lower case, which may be a way of writing instead of a "
        "repeat mask: b, d",
    )


def test_the_letters_of_the_word_are_what_they_look_like():
    assert bytes(LETTERS[code] for code in anchors_module._CODES) == WORD
