"""``genoctx show``: what a store, a window table, a preset or a run is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from genoctx.cli import show_run, show_store
from genoctx.cli.console import Console, get_console
from genoctx.errors import InputError, UsageError

STORE = "store"


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="store, windows, preset, presets or run; or just the path to look at."
        ),
    ],
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", show_default=False, help="A path, or the name of a preset."),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Argument(
            metavar="INTERVAL", show_default=False, help="Bases of a store: chr5:1-80, or a contig."
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            "--head", metavar="N", min=1, help="List the N longest contigs; default: 40, in a pipe all."
        ),
    ] = None,
) -> None:
    """Describe anything: a store, a window table, a preset, a run; or print bases of a store.

    genoctx show presets
    genoctx show preset nano > config.toml
    genoctx show stores/hg19
    genoctx show stores/hg19 chr5:1-80
    genoctx show runs/first --json
    """
    console = get_console()
    kind, target, interval = _resolve(what, path, interval)
    if kind == STORE:
        show_store.show(console, target, interval, head)
        return
    if interval is not None or head is not None:
        raise UsageError(
            f"an interval and --head belong to a store, not to {kind}", "genoctx show STORE chr5:1-80"
        )
    describe, render = KINDS[kind]
    found = describe(target)
    if console.json:
        console.emit({"what": kind, **found})
    else:
        render(console, found)


def _resolve(what: str, path: str | None, interval: str | None) -> tuple[str, str, str | None]:
    """The kind, what to look at, and the interval of a store; one argument alone may be either."""
    named = what in KINDS or what == STORE
    if named and (path is not None or what == "presets"):
        return what, path or "", interval
    if path is not None and interval is None and _is_store(what):
        return STORE, what, path
    if path is not None:
        raise UsageError(f"cannot show {what!r}", f"WHAT is one of {', '.join((STORE, *KINDS))}")
    if named:
        raise UsageError(
            f"show {what}: which one?", f"genoctx show {what} {'NAME' if what == 'preset' else 'PATH'}"
        )
    return _detect(what), what, None


def _is_store(path: str) -> bool:
    return (Path(path) / "manifest.json").is_file()


def _detect(target: str) -> str:
    from genoctx.presets import list_presets

    place = Path(target)
    if _is_store(target):
        return STORE
    if (place / show_run.RESOLVED).is_file():
        return "run"
    if place.is_file() and ".bed" in place.suffixes:
        return "windows"
    if target in list_presets():
        return "preset"
    if not place.exists():
        raise InputError(f"there is no {target}", "give a path, or a name from `genoctx show presets`")
    raise InputError(
        f"{target} is no store, window table or run", f"say what it is: genoctx show WHAT {target}"
    )


def describe_windows(target: str) -> dict[str, Any]:
    from genoctx.genome.windows import read_table

    table = read_table(Path(target))
    groups: dict[tuple[str, str], list[Any]] = {}
    for window in table.windows:
        groups.setdefault((window.split, window.contig), []).append(window)
    rows = []
    for (split, contig), windows in sorted(groups.items()):
        bases = sum(w.end - w.start for w in windows)
        n = sum((w.end - w.start) * w.n_fraction for w in windows) / bases if bases else 0.0
        rows.append(
            {"split": split, "contig": contig, "windows": len(windows), "bases": bases, "n_fraction": n}
        )
    return {"header": {str(k): v for k, v in table.header.items()}, "groups": rows}


def render_windows(console: Console, found: dict[str, Any]) -> None:
    for key, value in found["header"].items():
        console.info(f"{key}: {value}")
    for split in dict.fromkeys(g["split"] for g in found["groups"]):
        mine = [g for g in found["groups"] if g["split"] == split]
        console.info(
            f"{split}: {sum(g['windows'] for g in mine)} windows, {sum(g['bases'] for g in mine):,} bases"
        )
    columns = ["split", "contig", "windows", "bases", "n_fraction"]
    console.table("", columns, [[g[c] for c in columns] for g in found["groups"]], stdout=True)


def describe_preset(name: str) -> dict[str, Any]:
    from genoctx.config import preset_model
    from genoctx.model.count import count_active, count_parameters
    from genoctx.presets import describe_preset, read_preset

    model = preset_model(name)
    return {
        "name": name,
        "description": describe_preset(name),
        "parameters": count_parameters(model),
        "active_parameters": count_active(model),
        "layers": model.num_hidden_layers,
        "toml": read_preset(name),
    }


def render_preset(console: Console, found: dict[str, Any]) -> None:
    console.print(found["toml"].rstrip())


def describe_presets(_: str) -> dict[str, Any]:
    from genoctx.presets import list_presets

    listed = [describe_preset(name) for name in list_presets()]
    listed.sort(key=lambda p: p["parameters"])
    return {"presets": [{k: v for k, v in p.items() if k != "toml"} for p in listed]}


def render_presets(console: Console, found: dict[str, Any]) -> None:
    columns = ["name", "parameters", "active_parameters", "layers", "description"]
    rows = [[p[c] for c in columns] for p in found["presets"]]
    console.table("", ["preset", "parameters", "active", "layers", "description"], rows, stdout=True)


KINDS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[Console, dict[str, Any]], None]]] = {
    "windows": (describe_windows, render_windows),
    "preset": (describe_preset, render_preset),
    "presets": (describe_presets, render_presets),
    "run": (show_run.describe, show_run.render),
}
