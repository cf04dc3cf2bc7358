"""Named, commented starting points, shipped in the wheel as ``<name>.toml``."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files

from genoctx.errors import ConfigError


def list_presets() -> list[str]:
    """Names of all presets, sorted."""
    names = (entry.name for entry in files(__package__).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_preset(name: str) -> str:
    """The commented TOML text of preset ``name``."""
    if name not in list_presets():
        close = get_close_matches(name, list_presets(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(list_presets())}"
        raise ConfigError(f"no preset called {name!r}", hint)
    return (files(__package__) / f"{name}.toml").read_text(encoding="utf-8")


def describe_preset(name: str) -> str:
    """The one-line description: the preset's first comment, without its name."""
    first = read_preset(name).splitlines()[0]
    return first.lstrip("# ").removeprefix(f"{name}: ")
