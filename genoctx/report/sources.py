"""Where a report's numbers lie: ledgers of a run or of folders, and what stands beside them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genoctx.errors import GenoctxError, InputError
from genoctx.genome.window_table import WindowTable, read_table
from genoctx.report.context_ledger import FILE as CONTEXTS_FILE
from genoctx.report.context_ledger import ContextLedger
from genoctx.report.ledger import Ledger

LEDGER_FILE = "ledger.npz"
REVERSE_FILE = "ledger-rc.npz"


@dataclass(frozen=True)
class Beside:
    """What is known about an evaluation beside its ledger; all of it optional."""

    reverse: Ledger | None = None
    """The same windows read as reverse complement."""
    contexts: ContextLedger | None = None
    contexts_before: ContextLedger | None = None
    table: Mapping[str, Any] | None = None
    """Header of the window table."""
    leakage: Mapping[str, Any] | None = None
    """Of the window table, see ``leakage_of``."""
    machine: Mapping[str, Any] | None = None
    """``machine`` and ``versions`` of the session that evaluated."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """Lines of the run's ``metrics.jsonl``."""
    held_out: Sequence[Ledger] = ()
    """The run's evaluations, by step."""


def find_ledgers(path: Path) -> list[Path]:
    """The ledgers at ``path``, by step: a file, a folder with one, or a run's evaluations."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"{path} does not exist", "give a ledger.npz or a run directory")
    if (path / LEDGER_FILE).is_file():
        return [path / LEDGER_FILE]
    steps = [(re.fullmatch(r"step-(\d+)", p.parent.name), p) for p in path.glob(f"eval/step-*/{LEDGER_FILE}")]
    found = sorted((int(match[1]), p) for match, p in steps if match)
    if not found:
        raise InputError(f"{path} holds no {LEDGER_FILE} of an evaluation", "run `genoctx eval` first")
    return [p for _, p in found]


def run_of(ledger: Path) -> Path | None:
    """The run that the ledger is an evaluation of, where it lies in one."""
    folder = ledger.resolve().parent
    run = folder.parent.parent
    return run if folder.parent.name == "eval" and (run / "metrics.jsonl").is_file() else None


def read_reverse(path: Path, ledger: Ledger) -> Ledger | None:
    """The ledger of the other strand beside ``path``, if there is one.

    Raises InputError for a broken one and for one of another evaluation than ``ledger``.
    """
    beside = path.with_name(REVERSE_FILE)
    if not beside.is_file():
        return None
    found = Ledger.load(beside)
    if found.header.get("strand") != "-":
        raise InputError(f"{beside} is not of the reverse strand", "run `genoctx eval --rc` again")
    _require_same_evaluation(beside, found.header, ledger)
    return found


def read_contexts(path: Path, ledger: Ledger) -> ContextLedger | None:
    """The ledger of contexts beside ``path``, if there is one.

    Raises InputError for a broken one and for one of another evaluation than ``ledger``.
    """
    beside = path.with_name(CONTEXTS_FILE)
    if not beside.is_file():
        return None
    found = ContextLedger.load(beside)
    _require_same_evaluation(beside, found.header, ledger)
    return found


def _require_same_evaluation(path: Path, header: Mapping[str, Any], ledger: Ledger) -> None:
    for key in ("checkpoint", "step", "store_digest", "windows_digest", "split"):
        if header.get(key) != ledger.header.get(key):
            raise InputError(
                f"{path} is of another evaluation: its {key} is {header.get(key)}, not {ledger.header.get(key)}",
                "remove it, or run `genoctx eval` again",
            )


def read_machine(run: Path) -> dict[str, Any] | None:
    """Machine and versions of the run's last session, or None where its record cannot be read."""
    try:
        last = json.loads((run / "provenance.json").read_text())["sessions"][-1]
        return {key: dict(last[key]) for key in ("machine", "versions")}
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def read_config(run: Path) -> dict[str, dict[str, Any]] | None:
    """The resolved config of a run by section, or None where it cannot be read."""
    try:
        return {
            name: dict(each) for name, each in json.loads((run / "config.resolved.json").read_text()).items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def table_of(ledger: Ledger | ContextLedger) -> WindowTable:
    """The window table of a ledger, unchanged. Raises InputError, or OSError where it cannot be read."""
    name = ledger.header.get("windows")
    if not name:
        raise InputError("the ledger does not name its window table")
    digest = str(ledger.header.get("windows_digest")).removeprefix("sha256:")
    found = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    if len(digest) < 16 or not found.startswith(digest):
        raise InputError(f"{name} is not the window table that the ledger was made from")
    return read_table(name)


def read_table_header(ledger: Ledger) -> tuple[dict[str, Any] | None, str]:
    """The header of the ledger's window table, or None and why."""
    try:
        return dict(table_of(ledger).header), ""
    except GenoctxError as error:
        return None, error.message
    except OSError as error:
        return None, str(error)


def leakage_of(header: Mapping[str, Any] | None, reason: str = "") -> dict[str, Any]:
    """How much of the held-out windows stands in training, as the audit of a window table found it.

    ``audited``: True, False (nobody looked, or not at these rows) or None (no table), these for a ``reason``;
    then ``k``, ``kmers``, ``sampled``, ``share`` and ``distinct`` (None without a k-mer), ``error``, ``limit``.
    """
    if header is None:
        return {"audited": None, "reason": reason}
    if "leak_k" not in header:
        return {"audited": False, "reason": header.get("leak_edited", "")}
    names = ("k", "kmers", "sampled", "share", "distinct", "error", "limit")
    return {"audited": True, **{name: header.get(f"leak_{name}") for name in names}}
