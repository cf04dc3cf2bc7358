"""Who may import whom (design, section 2), read from the source: nothing is imported here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
HOMES = {"genoctx": ROOT, "genoctx_kernels": ROOT / "kernels"}


class Import(NamedTuple):
    """One import statement: the dotted name, and whether it runs when its module is imported."""

    name: str
    at_once: bool


def modules() -> dict[str, Path]:
    """Every module of both packages by dotted name."""
    found = {}
    for package, home in HOMES.items():
        for path in sorted((home / package).rglob("*.py")):
            parts = path.relative_to(home).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imports(module: str) -> tuple[Import, ...]:
    tree = ast.parse(MODULES[module].read_text())
    return tuple(_walk(tree, at_once=True))


def _walk(node: ast.AST, at_once: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, at_once) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            base = child.module or ""
            for alias in child.names:
                whole = f"{base}.{alias.name}"
                yield Import(whole if whole in MODULES else base, at_once)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from _walk(child, False)
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _walk(child, at_once and not later)


def top(name: str) -> str:
    return name.partition(".")[0]


def part(module: str) -> str:
    """``genoctx.run.metrics`` -> ``run``; ``genoctx.errors`` -> ``errors``."""
    return ".".join(module.split(".")[1:2])


def reached(module: str) -> set[str]:
    """Everything that importing ``module`` imports, packages on the way included."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            waiting += [i.name for i in imports(name) if i.at_once]
            waiting += [".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 1)]
    return seen


def of(*parts: str) -> list[str]:
    return [m for m in MODULES if top(m) == "genoctx" and part(m) in parts]


def test_the_walk_sees_the_project() -> None:
    assert {"genoctx.errors", "genoctx.cli.app", "genoctx_kernels.numerics"} <= set(MODULES)
    assert Import("genoctx.errors", True) in imports("genoctx.config")
    assert Import("pydantic", False) in imports("genoctx.config_sources")
    assert Import("rich.console", False) in imports("genoctx.cli.console")
    assert "torch" in reached("genoctx.model.hybrid")


def test_kernels_is_a_folder_not_a_package() -> None:
    """Hugging Face ships an import package called ``kernels``; ours must never shadow it."""
    assert not (ROOT / "kernels/__init__.py").exists()


@pytest.mark.parametrize("module", [m for m in MODULES if top(m) == "genoctx_kernels"])
def test_kernels_import_torch_triton_and_the_standard_library(module: str) -> None:
    allowed = {"torch", "triton", "genoctx_kernels", *sys.stdlib_module_names}
    assert {top(i.name) for i in imports(module)} <= allowed


FORBIDDEN = {
    "genome": {"report", "model", "engine", "run", "cli"},
    "report": {"model", "engine", "run", "cli"},
    "model": {"genome", "report", "engine", "run", "cli"},
    "engine": {"genome", "report", "run", "cli"},
    "run": {"cli"},
}


@pytest.mark.parametrize("where", FORBIDDEN)
def test_parts_keep_their_distance(where: str) -> None:
    for module in of(where):
        met = {part(i.name) for i in imports(module) if top(i.name) == "genoctx"}
        assert not met & FORBIDDEN[where], module


def test_nothing_imports_the_command_line() -> None:
    for module in MODULES:
        if part(module) not in ("cli", "__main__"):
            assert not [i.name for i in imports(module) if i.name.startswith("genoctx.cli")], module


def test_only_the_command_line_talks_to_terminals() -> None:
    for module in MODULES:
        if part(module) != "cli":
            assert not {top(i.name) for i in imports(module)} & {"typer", "rich", "click"}, module


@pytest.mark.parametrize("module", of("genome", "report", "config", "presets", "cli"))
def test_torch_is_never_reached_from_here(module: str) -> None:
    assert not {name for name in reached(module) if top(name) in ("torch", "triton", "genoctx_kernels")}


def test_genome_and_report_never_import_torch_even_later() -> None:
    for module in of("genome", "report"):
        assert "torch" not in {top(i.name) for i in imports(module)}, module


@pytest.mark.parametrize("module", of("cli"))
def test_rich_is_imported_late(module: str) -> None:
    """typer brings its own; a plain line on stderr needs none."""
    assert "rich" not in {top(i.name) for i in imports(module) if i.at_once}


@pytest.mark.parametrize("name", ["transformers", "ray", "fla"])
def test_an_optional_dependency_lives_in_one_adapter(name: str) -> None:
    users = [m for m in MODULES if name in {top(i.name) for i in imports(m)}]
    assert len(users) <= 1
