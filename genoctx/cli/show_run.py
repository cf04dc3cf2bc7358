"""The run part of ``genoctx show``: config, progress, checkpoints, evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from genoctx.cli.console import Console
from genoctx.cli.layout import number
from genoctx.errors import InputError

RESOLVED = "config.resolved.json"


def describe(target: str) -> dict[str, Any]:
    """What is known of the run at ``target``; reads only small files."""
    from genoctx.config import config_from_dict
    from genoctx.model.count import count_parameters
    from genoctx.run.metrics import read_metrics
    from genoctx.run.rundir import checkpoint_step, checkpoints, latest_checkpoint

    path = Path(target)
    if not (path / RESOLVED).is_file():
        raise InputError(f"{path} is not a run: it has no {RESOLVED}", "give the directory named by train -o")
    config = config_from_dict(_read_json(path / RESOLVED), str(path / RESOLVED))
    metrics = read_metrics(path / "metrics.jsonl")
    latest = latest_checkpoint(path)
    record = path / "provenance.json"
    return {
        "path": str(path),
        "digest": config.digest,
        "parameters": count_parameters(config.model),
        "steps": config.train.steps,
        "last": metrics[-1] if metrics else None,
        "checkpoints": [checkpoint_step(c) for c in checkpoints(path)],
        "latest_checkpoint": latest.name if latest else None,
        "evaluations": _evaluations(path / "eval"),
        "provenance": _read_json(record) if record.is_file() else None,
        "config": config.to_dict(),
    }


def render(console: Console, found: dict[str, Any]) -> None:
    """The same for people: state first, then every key of the config."""
    last = found["last"]
    state = "no step taken yet"
    if last:
        loss = last.get("loss_bits")
        shown = f"{loss:.4f} bits/base" if loss is not None else "a loss that is not finite"
        state = f"step {last['step']} of {found['steps']}, {number(last['bases'])} bases, {shown}"
    console.info(f"run {found['path']}: {number(found['parameters'])} parameters, {state}")
    rows: list[list[Any]] = [["digest", found["digest"]]]
    rows += [["inputs." + k, v] for k, v in ((found["provenance"] or {}).get("inputs") or {}).items()]
    rows += [["last." + k, v] for k, v in (last or {}).items() if k not in ("schema", "t")]
    rows.append(["checkpoints", ", ".join(str(step) for step in found["checkpoints"]) or "-"])
    rows.append(["latest_checkpoint", found["latest_checkpoint"]])
    for evaluation in found["evaluations"]:
        rows += [[f"eval.{evaluation['name']}.{k}", v] for k, v in evaluation["summary"].items()]
    for section, values in found["config"].items():
        rows += [[f"{section}.{k}", _short(v)] for k, v in values.items()]
    console.table(
        "", ["key", "value"], [[k, v if isinstance(v, str | None) else str(v)] for k, v in rows], stdout=True
    )


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    """Every evaluation with the plain numbers of its ``summary.json``."""
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        summary = place / "summary.json"
        numbers = _read_json(summary) if summary.is_file() else {}
        plain = {k: v for k, v in numbers.items() if isinstance(v, int | float | str)}
        found.append({"name": place.name, "summary": plain})
    return found


def _short(value: Any) -> Any:
    """Long lists (layer types) by their length."""
    return f"[{len(value)} entries]" if isinstance(value, list) and len(value) > 4 else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return found
