"""A checkpoint's own ``tokenizer.json``: are the letters and marks of the codec single tokens there?"""

from __future__ import annotations

import json
from pathlib import Path

from genoctx.errors import ConfigError, InputError
from genoctx.genome.codec import GLM_LETTERS, GLM_PREFIX, GLM_VOCABULARY

TOKENIZER = "tokenizer.json"


def verify_tokenizer(checkpoint: Path, vocab_size: int) -> bool:
    """Compare the ids that genoctx uses with GLM's vocabulary with ``checkpoint``'s ``tokenizer.json``.

    Returns whether there was one to compare with. The file has Hugging Face's layout: ``model.vocab`` maps
    text to ids, ``added_tokens`` lists the special ones. Raises InputError for a file that cannot be read,
    ConfigError where a letter is no single token or has another id.
    """
    path = checkpoint / TOKENIZER
    if vocab_size != GLM_VOCABULARY or not path.is_file():
        return False
    known = _read(path)
    expected = GLM_LETTERS | GLM_PREFIX
    missing = [text for text in expected if text not in known]
    if missing:
        raise ConfigError(
            f"{path} has no single token for {', '.join(missing)}",
            "genoctx reads one base per token; take a checkpoint of GLM-5.3-Flash with its own tokenizer",
        )
    moved = [f"{text} is {known[text]}, not {i}" for text, i in expected.items() if known[text] != i]
    if moved:
        raise ConfigError(
            f"{path} numbers its tokens otherwise than genoctx: {'; '.join(moved)}",
            "is it the tokenizer of this checkpoint? Take both from one release of GLM-5.3-Flash",
        )
    return True


def _read(path: Path) -> dict[str, int]:
    """Every token's id, special ones included."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        special = {str(token["content"]): int(token["id"]) for token in raw.get("added_tokens", [])}
        return {str(text): int(i) for text, i in raw["model"]["vocab"].items()} | special
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not a tokenizer of Hugging Face's layout: {error!r}",
            "fetch the checkpoint's file again, or remove it to use the ids genoctx knows",
        ) from error
