"""The list of a sharded checkpoint is a pickle: what may stand in it, and what may not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from genoctx.errors import InputError
from genoctx.model.shards import METADATA, Shards

PROPERTIES = "torch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"


def attribute(of: str, name: str) -> bytes:
    """``getattr(of, name)`` in a list of tensors, as Python 3.11.0 to 3.11.3 write a member of an enumeration."""
    return f"cbuiltins\ngetattr\n(c{of}V{name}\ntR.".encode()


def opened(folder: Path, raw: bytes) -> str:
    (folder / METADATA).write_bytes(raw)
    with pytest.raises(InputError) as error:
        Shards(folder)
    return error.value.message


def test_a_member_of_an_enumeration_is_read(tmp_path: Path) -> None:
    """It is no list of tensors by itself: that is what is found wrong then."""
    said = opened(tmp_path, attribute(PROPERTIES, "TORCH_CONTIGUOUS_FORMAT"))
    assert "_MEM_FORMAT_ENCODING' object has no attribute 'state_dict_metadata'" in said


@pytest.mark.parametrize(
    ("of", "name", "words"),
    [
        (PROPERTIES, "__class__", "__class__"),
        (PROPERTIES, "NOTHING", "NOTHING"),
        ("torch\nSize\n", "__init__", "has no place in it"),
        ("os\nsystem\n", "__call__", "os.system has no place in it"),
    ],
)
def test_no_other_attribute_is(of: str, name: str, words: str, tmp_path: Path) -> None:
    assert words in opened(tmp_path, attribute(of, name))


def test_other_code_is_refused(tmp_path: Path) -> None:
    assert "builtins.print has no place in it" in opened(tmp_path, pickle.dumps(print))
