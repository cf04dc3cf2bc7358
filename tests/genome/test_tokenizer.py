import json

import pytest

from genoctx.errors import ConfigError, InputError
from genoctx.genome.codec import GLM_LETTERS, GLM_PREFIX, GLM_VOCABULARY
from genoctx.genome.tokenizer import verify_tokenizer


def write(folder, vocab, special=GLM_PREFIX):
    added = [{"id": i, "content": text, "special": True} for text, i in special.items()]
    text = json.dumps({"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": vocab}})
    (folder / "tokenizer.json").write_text(text)


def test_the_letters_of_the_checkpoint_are_the_ones_we_use(tmp_path):
    assert not verify_tokenizer(tmp_path, GLM_VOCABULARY)  # there is none to compare with
    write(tmp_path, {**GLM_LETTERS, "AC": 1706})
    assert verify_tokenizer(tmp_path, GLM_VOCABULARY)
    assert not verify_tokenizer(tmp_path, 16)  # our own small vocabulary has nothing to do with it


def test_letters_that_are_no_single_tokens_are_refused(tmp_path):
    write(tmp_path, {"A": 32, "C": 34, "AC": 1706}, {"[gMASK]": 154822})
    with pytest.raises(ConfigError, match="no single token for G, T, N, <sop>"):
        verify_tokenizer(tmp_path, GLM_VOCABULARY)


def test_other_ids_are_refused(tmp_path):
    write(tmp_path, {**GLM_LETTERS, "G": 39})
    with pytest.raises(ConfigError, match="G is 39, not 38") as caught:
        verify_tokenizer(tmp_path, GLM_VOCABULARY)
    assert "T is" not in caught.value.message


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {"A": "x"}}}']
)
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        verify_tokenizer(tmp_path, GLM_VOCABULARY)
