import numpy as np
import pytest
from genome_helpers import fasta
from hypothesis import given
from hypothesis import strategies as st

from genoctx.errors import ConfigError
from genoctx.genome.alphabet import LETTERS, encode
from genoctx.genome.codec import NO_TARGET, Codec, read_window, scored_bases
from genoctx.genome.store import ingest
from genoctx.genome.windows import Window

SMALL = Codec.for_vocab(16)
GLM = Codec.for_vocab(154880)


def test_ids_by_vocabulary():
    assert SMALL == Codec.for_vocab(5) == Codec((0, 1, 2, 3), 4)
    assert Codec((32, 34, 38, 51), 45, prefix=(154822, 154824)) == GLM
    words = Codec.for_vocab(4097, 6)
    assert words.words == tuple(range(4096)) and words.unknown == 4096 and words.prefix == ()


@pytest.mark.parametrize(
    "size, letters", [(0, 1), (4, 1), (1025, 1), (151552, 1), (64, 3), (154880, 2), (16, 0), (70000, 9)]
)
def test_vocabularies_without_known_ids(size, letters):
    with pytest.raises(ConfigError) as caught:
        Codec.for_vocab(size, letters)
    assert caught.value.hint


@pytest.mark.parametrize(
    "words, unknown", [((0, 1, 2), 3), ((0, 1, 2, 3), 3), ((0, 1, 2, 2), 3), ((-1, 1, 2, 3), 4)]
)
def test_impossible_ids(words, unknown):
    with pytest.raises(ConfigError):
        Codec(words, unknown)


def test_every_ambiguity_letter_is_read_as_n():
    assert GLM.encode(encode(LETTERS)).tolist() == [154822, 154824, 32, 34, 38, 51, *[45] * 11]


def test_a_position_predicts_the_next_base_if_it_is_one_of_four():
    codes = encode(b"ACNGRTT")
    assert SMALL.encode(codes).tolist() == [0, 1, 4, 2, 4, 3, 3]
    assert SMALL.targets(codes).tolist() == [1, -100, 2, -100, 3, 3, -100]
    assert GLM.targets(codes).tolist() == [-100, 32, 34, -100, 38, -100, 51, 51, -100]


def test_the_last_prefix_token_predicts_the_first_base():
    codec = Codec((32, 34, 38, 51), 45, prefix=(7, 8))
    codes = encode(b"GAN")
    assert codec.encode(codes).tolist() == [7, 8, 38, 32, 45]
    assert codec.targets(codes).tolist() == [-100, 38, 32, -100, -100]


@pytest.mark.parametrize("prefix", [(), (9,)])
@pytest.mark.parametrize("bases", [b"", b"A", b"N"])
def test_tiny_windows(prefix, bases):
    codec = Codec((0, 1, 2, 3), 4, prefix=prefix)
    ids, targets = codec.encode(encode(bases)), codec.targets(encode(bases))
    assert len(ids) == len(targets) == len(prefix) + len(bases)
    assert ids.dtype == targets.dtype == np.int64


@given(st.binary(max_size=60), st.lists(st.integers(100, 200), max_size=3))
def test_targets_are_the_ids_one_step_ahead(noise, prefix):
    codes = np.frombuffer(noise, dtype=np.uint8) % 15
    codec = Codec((11, 12, 13, 14), 15, prefix=tuple(prefix))
    ids, targets = codec.encode(codes), codec.targets(codes)
    for at, target in enumerate(targets[:-1]):
        following = ids[at + 1]
        assert target == (following if following in (11, 12, 13, 14) else NO_TARGET)
    assert targets[-1:].tolist() in ([], [NO_TARGET])


def test_words_are_in_the_order_of_their_bases():
    codec = Codec.for_vocab(70, 3)
    codes = encode(b"AAAAACGTTTTTACNCAGCA")
    assert codec.encode(codes).tolist() == [0, 1, 2 * 16 + 15, 63, 64, 16 + 2]  # the last CA fills no word
    assert codec.targets(codes).tolist() == [1, 47, 63, -100, 18, -100]


@given(st.binary(max_size=60), st.integers(1, 4), st.booleans())
def test_words_keep_every_base(noise, letters, prefixed):
    codes = np.frombuffer(noise, dtype=np.uint8) % 6
    codec = Codec(tuple(range(4**letters)), 4**letters, letters, (500,) if prefixed else ())
    ids, targets = codec.encode(codes), codec.targets(codes)
    read = [int(i) for i in ids[len(codec.prefix) :]]
    assert len(read) == len(codes) // letters
    for word, place in enumerate(read):
        bases = codes[word * letters : (word + 1) * letters]
        if (bases > 3).any():
            assert place == codec.unknown
        else:
            assert [place // 4 ** (letters - 1 - i) % 4 for i in range(letters)] == bases.tolist()
        at = word - 1 + len(codec.prefix)
        if at >= 0:
            assert targets[at] == (NO_TARGET if place == codec.unknown else place)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codec")
    (folder / "g.fa").write_bytes(fasta({"z": "TTTT", "a": "ACGTnnacgtRG"}))
    return ingest(folder / "g.fa", folder / "store")


def window(start, end, strand):
    return Window("a", start, end, "w", strand, "train", 0.5, 0.0)


def test_a_window_on_the_forward_strand(store):
    tokens = read_window(store, window(2, 9, "+"), SMALL)
    assert tokens.ids.tolist() == [2, 3, 4, 4, 0, 1, 2]
    assert tokens.targets.tolist() == [3, -100, -100, 0, 1, 2, -100]
    assert tokens.shares is None


def test_a_window_on_the_reverse_strand(store):
    tokens = read_window(store, window(2, 12, "-"), SMALL)
    assert tokens.ids.tolist() == [1, 4, 0, 1, 2, 3, 4, 4, 0, 1]  # CYACGTNNAC
    assert tokens.targets.tolist() == [-100, 0, 1, 2, 3, -100, -100, 0, 1, -100]


def test_bases_of_lower_case_count_less(store):
    forward = read_window(store, window(2, 9, "+"), SMALL, softmask=0.25)  # GTnnacg
    assert forward.targets.tolist() == [3, -100, -100, 0, 1, 2, -100]
    assert forward.shares.tolist() == [1, 0.25, 0.25, 0.25, 0.25, 0.25, 0]
    reverse = read_window(store, window(2, 12, "-"), SMALL, softmask=0.25)  # CYacgtnnAC
    assert reverse.targets.tolist() == [-100, 0, 1, 2, 3, -100, -100, 0, 1, -100]
    assert reverse.shares.tolist() == [1, *[0.25] * 6, 1, 1, 0]


def test_bases_that_count_nothing_are_no_targets(store):
    tokens = read_window(store, window(0, 9, "+"), SMALL, softmask=0)  # ACGTnnacg
    assert tokens.targets.tolist() == [1, 2, 3, *[-100] * 6]


def test_a_word_counts_the_mean_of_its_bases(store):
    words = Codec.for_vocab(17, 2)
    tokens = read_window(store, window(1, 9, "+"), words, softmask=0.5)  # CG Tn na cg
    assert tokens.targets.tolist() == [-100, -100, 6, -100]
    assert tokens.shares.tolist() == [0.75, 0.5, 0.5, 0]
    prefixed = Codec(words.words, words.unknown, 2, prefix=(99,))
    assert read_window(store, window(1, 9, "+"), prefixed, softmask=0.5).shares.tolist() == [
        1,
        0.75,
        0.5,
        0.5,
        0,
    ]


@given(st.binary(max_size=60), st.integers(1, 3), st.booleans())
def test_scored_bases_are_those_of_the_targets(noise, letters, prefixed):
    codes = np.frombuffer(noise, dtype=np.uint8) % 6
    codec = Codec(tuple(range(4**letters)), 4**letters, letters, (500,) if prefixed else ())
    expected = np.zeros(len(codes), dtype=bool)
    for at in np.flatnonzero(codec.targets(codes) >= 0):
        first = (at + 1 - len(codec.prefix)) * letters
        expected[first : first + letters] = True
    assert scored_bases(codes, letters, prefixed).tolist() == expected.tolist()
