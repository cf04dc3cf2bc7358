"""Where config values come from, and the errors that lead back there: file, line, did-you-mean."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from genoctx.errors import ConfigError, GenoctxError
from genoctx.presets import list_presets, read_preset
from genoctx.sizes import Size, parse_size


class Value(NamedTuple):
    """One value as written, where it was written, and the folder its relative paths count from."""

    value: Any
    origin: str
    base: Path


def read_file(path: Path, known: Mapping[str, Any]) -> dict[str, Value]:
    """Flat ``section.key`` values of a TOML file, plus ``preset`` where the file names one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        stem = path.name.removesuffix(".toml")
        hint = "a config is a file of text in TOML; docs/quickstart.md has one"
        if stem in list_presets():
            hint = f"for the preset use --preset {stem}"
        elif isinstance(error, FileNotFoundError):
            hint = "check the path; `genoctx show presets` lists where to start from"
        raise ConfigError(f"cannot read config {path}: {reason}", hint) from error
    return _values(text, str(path), path.absolute().parent, known)


def read_preset_values(name: str, known: Mapping[str, Any]) -> dict[str, Value]:
    """Flat values of a shipped preset, over those of the preset it builds on."""
    values = _values(read_preset(name), f"preset {name}", Path(), known)
    below = values.pop("preset", None)
    own = {key: v._replace(origin=f"preset {name}") for key, v in values.items()}
    return (read_preset_values(str(below.value), known) if below else {}) | own


def parse_override(text: str) -> tuple[str, Value]:
    """``K=V`` of ``--set``: V as TOML where it is TOML, else as a string."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not KEY=VALUE", "for example --set optim.lr=3e-5")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except (tomllib.TOMLDecodeError, KeyError):
        value = raw.strip()
    return key.strip(), Value(value, "--set", Path.cwd())


def check(
    values: Mapping[str, Value], known: Mapping[str, Any], sections: Mapping[str, type[Any]]
) -> dict[str, dict[str, Any]]:
    """Values of known keys, converted and in range, by section; a required key that is absent is an error."""
    checked: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for key, value in values.items():
        if key not in known:
            raise _unknown(key, value.origin, list(known))
        section, name = key.split(".", 1)
        checked[section][name] = _convert(key, value, known[key])
    _fit_pad_token(checked["model"], values)
    for section, kind in sections.items():
        for f in fields(kind):
            required = f.default is MISSING and f.default_factory is MISSING
            if required and f.name not in checked[section]:
                raise ConfigError(
                    f"{section}.{f.name} is missing",
                    f"add it to [{section}], or --set {section}.{f.name}=...",
                )
    return checked


def _fit_pad_token(model: dict[str, Any], values: Mapping[str, Value]) -> None:
    """The published pad token exists only in the published vocabulary."""
    vocab = model.get("vocab_size")
    if vocab is None:
        return
    pad = model.setdefault("pad_token_id", None if vocab <= _PUBLISHED_PAD else _PUBLISHED_PAD)
    if pad is not None and pad >= vocab:
        origin = values["model.pad_token_id"].origin
        raise ConfigError(
            f"model.pad_token_id = {pad} ({origin}) is not a token of a vocabulary of {vocab}",
            "set it to -1 for none",
        )


_PUBLISHED_PAD = 154820


def _values(text: str, where: str, base: Path, known: Mapping[str, Any]) -> dict[str, Value]:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{where}: {error}", "TOML: strings in quotes, lists in [ ], true and false"
        ) from error
    values: dict[str, Value] = {}
    for name, section in raw.items():
        if name == "preset" and isinstance(section, str):
            values["preset"] = Value(section, where, base)
        elif not isinstance(section, dict):
            raise _unknown(name, f"{where}:{_line(text, '', name)}", list(known))
        else:
            for key, value in section.items():
                full = f"{name}.{key}"
                values[full] = Value(value, f"{where}:{_line(text, name, key)}", base)
    return values


def _line(text: str, section: str, key: str) -> int:
    """The line on which ``key`` is set: tomllib keeps no positions. 1 where it cannot be found."""
    current = ""
    spelled = re.compile(rf"""\s*(?:{re.escape(section)}\s*\.\s*)?["']?{re.escape(key)}["']?\s*[=.]""")
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            current = header[1].strip().strip("\"'")
            if current == f"{section}.{key}":
                return number
        elif spelled.match(line) and (current == section or (not current and f"{section}." in line)):
            return number
    return 1


def _unknown(key: str, origin: str, known: list[str]) -> ConfigError:
    sections = list(dict.fromkeys(k.split(".")[0] for k in known))
    section, _, name = key.rpartition(".")
    if section and section not in sections:
        close = get_close_matches(section, sections, n=1)
        hint = f"did you mean [{close[0]}]?" if close else f"sections are {', '.join(sections)}"
        return ConfigError(f"unknown section [{section}] ({origin})", hint)

    def likeness(candidate: str) -> float:
        its_section, _, its_name = candidate.partition(".")
        return SequenceMatcher(None, name, its_name).ratio() + 0.15 * (section == its_section)

    best = max(known, key=likeness)
    if likeness(best) >= 0.6:
        hint = f"did you mean {best}?"
    elif section:
        siblings = [k.partition(".")[2] for k in known if k.startswith(f"{section}.")]
        hint = f"keys of [{section}]: {', '.join(siblings)}"
    else:
        hint = "keys are written section.key, for example optim.lr"
    return ConfigError(f"unknown key {key} ({origin})", hint)


def _convert(key: str, value: Value, hint: Any) -> Any:
    """``value`` as the type of its field, or a ConfigError that says what was expected."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    raw = _prepare(key, value, hint)
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        wanted = first["msg"].replace("Input should be", "should be")
        place = f" at position {first['loc'][0]}" if first["loc"] and isinstance(first["loc"][0], int) else ""
        raise ConfigError(f"{key} = {value.value!r} ({value.origin}){place} {wanted}") from error


def _prepare(key: str, value: Value, hint: Any) -> Any:
    """What TOML cannot say itself: sizes with letters, tuples, paths, and no pad token."""
    raw = value.value
    markers = get_args(hint)[1:] if hasattr(hint, "__metadata__") else ()
    if isinstance(raw, str) and any(isinstance(m, Size) for m in markers):
        try:
            return parse_size(raw)
        except GenoctxError as error:
            raise ConfigError(f"{key} = {raw!r} ({value.origin}): {error.message}", error.hint) from error
    if isinstance(raw, list) and get_origin(hint) is tuple:
        return tuple(raw)
    if isinstance(raw, str) and (hint is Path or Path in get_args(hint)):
        return Path(os.path.abspath(value.base / Path(raw).expanduser()))
    return None if key == "model.pad_token_id" and raw == -1 else raw
