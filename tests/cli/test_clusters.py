"""The commands of docs/clusters.md are commands: verbs and flags that exist, settings that a config takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from genoctx.cli import app
from genoctx.cli.train import Launcher
from genoctx.config import SECTIONS, load_config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/clusters.md").read_text()


def commands(text: str) -> list[list[str]]:
    """Arguments of every ``genoctx VERB ...`` in code: a line, a span, or a manifest's list."""
    joined = text.replace("\\\n", " ")
    code = re.findall(r"^    (.*)$", joined, re.MULTILINE) + re.findall(r"`([^`\n]+)`", joined)
    found = []
    for line in code:
        words = shlex.split(
            line.split(";")[0].replace("[", " ").replace("]", " ").replace(",", " "), comments=True
        )
        if "genoctx" in words[:-1] and "pip" not in words:
            found.append(words[words.index("genoctx") + 1 :])
    return found


def parse(arguments: list[str]) -> tuple[str, dict[str, object]]:
    """The verb of a command and what its parameters get; click's error where it takes no such thing."""
    root = app.build_command()
    with root.make_context("genoctx", list(arguments)) as ctx:
        name, command, rest = root.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        with command.make_context(name, rest, parent=ctx) as inner:
            return str(name), inner.params


COMMANDS = [c for c in commands(TEXT) if len(c) > 1 and "..." not in c]  # others are names and patterns


def test_the_page_has_commands_for_every_launcher() -> None:
    said = [" ".join(c) for c in commands(TEXT)]
    assert len(COMMANDS) >= 8 and any("--launcher ray" in c for c in said)
    assert sum(c.startswith("train /config/config.toml") for c in said) == 1  # the manifest's


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_of_the_page_parses(arguments: list[str]) -> None:
    verb, params = parse(arguments)
    assert verb in ("train", "plan")
    if verb == "train":
        assert str(params["output"]).endswith("runs/g") and isinstance(params["launcher"], Launcher)


def test_a_command_that_is_none_would_be_seen() -> None:
    with pytest.raises(Exception, match="--ranks"):
        parse(["train", "a.toml", "-o", "r", "--ranks", "2"])


def test_the_settings_that_the_page_names_exist(tmp_path: Path) -> None:
    section = re.search(r"^    (\[parallel\]\n(?:    \w+ = \d+\n)+)", TEXT, re.MULTILINE)
    assert section is not None
    config = tmp_path / "run.toml"
    config.write_text('[data]\nstore = "s"\nwindows = "w"\n' + section[1].replace("    ", ""))
    parallel = load_config(config, "nano", []).parallel
    assert (parallel.cp, parallel.ep) == (8, 32)
    for name, key in re.findall(r"`(\w+)\.(\w+)`", TEXT):
        assert name not in SECTIONS or key in SECTIONS[name].__dataclass_fields__, f"{name}.{key}"
