"""The parts of docs/cli.md that are made from the command tree and the config's dataclasses.

The page holds blocks between ``<!-- made from: NAME -->`` and ``<!-- end -->``; ``python -m
genoctx.cli.reference docs/cli.md`` writes them anew, and a test compares. All else is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from genoctx.cli.verbs import VERBS, load
from genoctx.files import write_atomic

_BLOCK = re.compile(r"(<!-- made from: ([\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
KEYS, LIST = "config keys", "verbs"


def fill(page: str) -> str:
    """The page with every block made anew; KeyError for a block of no verb."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{_block(m[2])}\n\n{m[3]}", page)


def blocks(page: str) -> list[str]:
    """Names of the blocks of a page."""
    return [match[2] for match in _BLOCK.finditer(page)]


def _block(name: str) -> str:
    if name == LIST:
        return _table(
            ("panel", "verb", "what it does"), ((v.panel, f"`{v.name}`", v.line) for v in VERBS.values())
        )
    if name == KEYS:
        return "\n\n".join(_keys())
    command = load(VERBS[name], [])
    rows = ((_spelled(p), _default(p), _plain(p.help)) for p in command.params if not _hidden(p))
    usage = " ".join(["genoctx", name, *_usage(command.params)])
    return f"    {usage}\n\n{_table(('argument or flag', 'default', 'meaning'), rows)}"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _hidden(param: Any) -> bool:
    return param.name == "help" or getattr(param, "hidden", False)


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _usage(params: list[Any]) -> Iterator[str]:
    shown = [p for p in params if not _hidden(p)]
    for p in shown:
        if _is_argument(p):
            text = _metavar(p)
            yield text if p.required or text.startswith("[") else f"[{text}]"
    yield from (f"{min(p.opts, key=len)} {_metavar(p)}" for p in shown if not _is_argument(p) and p.required)
    yield "[...]"


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _spelled(param: Any) -> str:
    if _is_argument(param):
        return f"`{_metavar(param)}`"
    value = "" if param.is_flag or not param.metavar else f" {param.metavar}"
    return ", ".join(f"`{opt}`" for opt in sorted(param.opts, key=len)) + (
        f" `{value.strip()}`" if value else ""
    )


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if getattr(param, "is_flag", False) or param.default in (None, "", (), []) or callable(param.default):
        return ""
    return f"`{param.default}`"


def _plain(text: str | None) -> str:
    """Help as written, without the escapes that keep brackets from being markup."""
    return " ".join((text or "").replace(r"\[", "[").split())


def _keys() -> Iterator[str]:
    """A table for each section of a config file but ``[model]``, which presets comment."""
    from genoctx import config

    notes = _notes(inspect.getsource(config))
    for section, kind in config.SECTIONS.items():
        if section == "model":
            continue
        doc = " ".join(str(kind.__doc__).split())
        rows = ((f"`{f.name}`", _value(f), notes[kind.__name__, f.name]) for f in fields(kind))
        yield f"{doc}\n\n{_table(('key', 'default', 'meaning'), rows)}"


def _value(field: Any) -> str:
    if field.default is MISSING:
        return "required"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return "" if value is None else f"`{json.dumps(value)}`"


def _notes(source: str) -> dict[tuple[str, str], str]:
    """The string below each field, by class and field."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for item, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr):
                    text = ast.literal_eval(after.value)
                    found[node.name, ast.unparse(item.target)] = " ".join(text.replace("``", "`").split())
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_atomic(place, fill(place.read_text()))
