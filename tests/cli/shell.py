"""``genoctx ...`` as a user types it, in a process of its own or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_run import RUN

from genoctx.cli import app

SETTINGS = RUN.replace("steps = 5", "steps = 3").replace("limit = 1", "limit = 2")
CHECKPOINT = "runs/phage/checkpoints/step-000003"
EVAL = ("eval", "runs/phage", "--windows", "phage.bed")


def shell(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``genoctx ...`` in a process of its own, started in ``folder``."""
    return subprocess.run(
        [sys.executable, "-m", "genoctx", *args],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@dataclass(frozen=True)
class Path_:
    """What the commands left, and what each of them said."""

    folder: Path
    said: dict[str, subprocess.CompletedProcess[str]]

    def json(self, step: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.said[step].stdout)
        return found


# one process per command is slow; what follows is the same entry point in this process


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


class Shell:
    """``genoctx ...`` in this process, in a folder with everything but the run's own directory copied."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *args: str) -> Said:
        self._capsys.readouterr()
        code = app.run([*args])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return Said(code, out, err)

    def refuses(self, *args: str, code: int = 2, what: str, hint: str) -> None:
        """The error says what and where, the hint what to do; stdout stays empty."""
        said = self(*args)
        assert said.code == code, said.err
        lines = said.err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        hints = [line for line in lines if line.startswith("hint: ")]
        assert said.out == ""
        assert len(errors) == len(hints) == 1, said.err
        assert what in said.err.partition("hint: ")[0], said.err
        assert hint in hints[0], said.err
