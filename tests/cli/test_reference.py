"""docs/cli.md says what the command line is: its blocks are made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from genoctx.cli import reference
from genoctx.cli.verbs import VERBS
from genoctx.config import SECTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
COMMAND = "python -m genoctx.cli.reference docs/cli.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == reference.fill(page), f"run: {COMMAND}"


def test_every_verb_and_key_is_there() -> None:
    assert sorted(reference.blocks(PAGE.read_text())) == sorted([*VERBS, reference.LIST, reference.KEYS])
    page = PAGE.read_text()
    assert all(f"``[{section}]``" in page or section == "model" for section in SECTIONS)


def test_a_block_follows_the_command_tree() -> None:
    made = reference.fill("a\n<!-- made from: train -->\nold\n<!-- end -->\nb\n")
    assert made.startswith("a\n<!-- made from: train -->\n\n    genoctx train CONFIG.toml -o RUN [...]\n")
    assert "old" not in made and made.endswith("<!-- end -->\nb\n")
    assert "| `-o`, `--output` `RUN` | required | Run directory. |" in made
    assert "| `--dry-run` |  |" in made
    assert made == reference.fill(made)


def test_an_unknown_block_is_an_error() -> None:
    with pytest.raises(KeyError):
        reference.fill("<!-- made from: nothing -->\n<!-- end -->\n")
