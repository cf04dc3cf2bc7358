import numpy as np
import pytest
from genome_helpers import fasta
from hypothesis import given
from hypothesis import strategies as st

from genoctx.errors import ConfigError
from genoctx.genome.alphabet import LETTERS, encode
from genoctx.genome.codec import NO_TARGET, Codec, read_softmask, read_window
from genoctx.genome.store import ingest
from genoctx.genome.windows import Window

SMALL = Codec.for_vocab(16)
GLM = Codec.for_vocab(154880)


def test_ids_by_vocabulary():
    assert SMALL.base_ids == Codec.for_vocab(5).base_ids == (0, 1, 2, 3, 4)
    assert GLM.base_ids == (32, 34, 38, 51, 45)


@pytest.mark.parametrize("size", [0, 4, 1025, 151552])
def test_vocabularies_without_known_ids(size):
    with pytest.raises(ConfigError) as caught:
        Codec.for_vocab(size)
    assert caught.value.hint


@pytest.mark.parametrize("ids", [(0, 1, 2, 3), (0, 1, 2, 3, 3), (-1, 1, 2, 3, 4)])
def test_impossible_ids(ids):
    with pytest.raises(ConfigError):
        Codec(ids)


def test_every_ambiguity_letter_is_read_as_n():
    assert GLM.encode(encode(LETTERS)).tolist() == [32, 34, 38, 51, *[45] * 11]


def test_a_position_predicts_the_next_base_if_it_is_one_of_four():
    codes = encode(b"ACNGRTT")
    assert SMALL.encode(codes).tolist() == [0, 1, 4, 2, 4, 3, 3]
    assert SMALL.targets(codes).tolist() == [1, -100, 2, -100, 3, 3, -100]
    assert GLM.targets(codes).tolist() == [34, -100, 38, -100, 51, 51, -100]


def test_the_last_prefix_token_predicts_the_first_base():
    codec = Codec((32, 34, 38, 51, 45), prefix=(7, 8))
    codes = encode(b"GAN")
    assert codec.encode(codes).tolist() == [7, 8, 38, 32, 45]
    assert codec.targets(codes).tolist() == [-100, 38, 32, -100, -100]


@pytest.mark.parametrize("prefix", [(), (9,)])
@pytest.mark.parametrize("bases", [b"", b"A", b"N"])
def test_tiny_windows(prefix, bases):
    codec = Codec((0, 1, 2, 3, 4), prefix)
    ids, targets = codec.encode(encode(bases)), codec.targets(encode(bases))
    assert len(ids) == len(targets) == len(prefix) + len(bases)
    assert ids.dtype == targets.dtype == np.int64


@given(st.binary(max_size=60), st.lists(st.integers(100, 200), max_size=3))
def test_targets_are_the_ids_one_step_ahead(noise, prefix):
    codes = np.frombuffer(noise, dtype=np.uint8) % 15
    codec = Codec((11, 12, 13, 14, 15), tuple(prefix))
    ids, targets = codec.encode(codes), codec.targets(codes)
    for at, target in enumerate(targets[:-1]):
        following = ids[at + 1]
        assert target == (following if following in (11, 12, 13, 14) else NO_TARGET)
    assert targets[-1:].tolist() in ([], [NO_TARGET])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codec")
    (folder / "g.fa").write_bytes(fasta({"z": "TTTT", "a": "ACGTnnacgtRG"}))
    return ingest(folder / "g.fa", folder / "store")


def window(start, end, strand):
    return Window("a", start, end, "w", strand, "train", 0.5, 0.0)


def test_a_window_on_the_forward_strand(store):
    tokens = read_window(store, window(2, 9, "+"), SMALL)
    assert tokens.codes.tolist() == [2, 3, 4, 4, 0, 1, 2]
    assert tokens.ids.tolist() == [2, 3, 4, 4, 0, 1, 2]
    assert tokens.targets.tolist() == [3, -100, -100, 0, 1, 2, -100]
    assert read_softmask(store, window(2, 9, "+")).tolist() == [False, False, *[True] * 5]


def test_a_window_on_the_reverse_strand(store):
    tokens = read_window(store, window(2, 12, "-"), SMALL)
    assert tokens.ids.tolist() == [1, 4, 0, 1, 2, 3, 4, 4, 0, 1]  # CYACGTNNAC
    assert tokens.codes.tolist() == [1, 6, 0, 1, 2, 3, 4, 4, 0, 1]
    assert tokens.targets.tolist() == [-100, 0, 1, 2, 3, -100, -100, 0, 1, -100]
    assert read_softmask(store, window(2, 11, "-")).tolist() == [False, *[True] * 6, False, False]
