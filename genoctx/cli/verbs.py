"""The registry of verbs. A verb's module is imported when the verb is used, not before.

Adding a verb: write ``genoctx/cli/<verb>.py`` with one typer-annotated function that imports
anything heavy (torch, numpy) in its body, and add one line to ``VERBS``.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
GLOBAL_PANEL = "Global options"


@dataclass(frozen=True)
class Verb:
    """One verb: where it stands in the help, its one line there, and the function behind it."""

    name: str
    panel: str
    line: str
    function: str


VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "ingest",
            "Data",
            "Read reference genomes (FASTA, plain or compressed) into a genome store.",
            "ingest",
        ),
        Verb("windows", "Data", "Cut a store into training and held-out windows, as a BED table.", "windows"),
        Verb("show", "Data", "Describe anything: a store, a window table, a preset, a run.", "show"),
        Verb("plan", "Model", "What fits where, what binds, how long: before anything is allocated.", "plan"),
        Verb("train", "Model", "Fine-tune on the windows. Resumes if the run exists.", "train"),
        Verb("eval", "Model", "Held-out loss of a checkpoint; writes a ledger, not an average.", "evaluate"),
        Verb("report", "Model", "Tables of held-out loss from one or two ledgers.", "report"),
        Verb("convert", "Model", "Weights from and to the hub; merge LoRA; verify every bit.", "convert"),
        Verb("bench", "Check", "Measure this machine: a step, ops, reading sequence files.", "bench"),
        Verb("doctor", "Check", "What this machine can run, and which kernels are in use.", "doctor"),
    )
}


class LazyGroup(TyperGroup):
    """Lists verbs from the registry and imports one only to run it or to print its own help."""

    _listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        listed = super().get_command(ctx, cmd_name)
        if listed is None or self._listing:
            return listed
        return load(VERBS[cmd_name], [p for p in self.params if p.name != "help"])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def load(verb: Verb, global_params: list[Any]) -> Any:
    """The command of ``verb``, which also accepts the global options after its name."""
    function = getattr(importlib.import_module(f"genoctx.cli.{verb.name}"), verb.function)
    single = typer.Typer(add_completion=False)
    single.command(verb.name, context_settings=HELP_NAMES)(function)
    command: Any = typer.main.get_command(single)
    for param in command.params:
        param.help = _literal(param.help)
    command.help = _literal(command.help)
    taken = {opt for param in command.params for opt in param.opts}
    for param in global_params:
        if taken.isdisjoint(param.opts) and getattr(param, "rich_help_panel", None) == GLOBAL_PANEL:
            again = copy.copy(param)
            again.expose_value = False  # its callback configures the console; the verb never sees it
            command.params.append(again)
    return command


def _literal(text: str | None) -> str | None:
    """Brackets in help are brackets: ``[data]`` must not vanish as markup."""
    return text.replace("[", r"\[") if text else text
