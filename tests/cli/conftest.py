"""The whole path on real data, made once per session, and a copy of it for every test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from shell import SETTINGS, Path_, Shell, shell
from tiny_run import MODEL


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> Path_:
    folder = tmp_path_factory.mktemp("path")
    (folder / "run.toml").write_text(
        f'[data]\nstore = "stores/phage"\nwindows = "phage.bed"\n{MODEL}{SETTINGS}'
    )
    (folder / "shape.toml").write_text(MODEL)
    (folder / "stores").mkdir()
    steps = {
        "ingest": ("ingest", str(genomes / "lambda_phage.fa.gz"), "-o", "stores/phage"),
        "windows": ("windows", "stores/phage", "-o", "phage.bed", "--context", "2k", "--holdout", "0.2"),
        "train": ("train", "run.toml", "-o", "runs/phage"),
        "eval": ("eval", "runs/phage", "--windows", "phage.bed", "-o", "scored"),
        "report": ("report", "runs/phage"),
        "run": ("show", "run", "runs/phage"),
        "store": ("show", "store", "stores/phage"),
        "table": ("show", "windows", "phage.bed"),
        "doctor": ("doctor", "shape.toml", "--selftest"),
    }
    return Path_(folder, {name: shell(folder, *args, "--json") for name, args in steps.items()})


@pytest.fixture
def here(
    path: Path_, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    shutil.copytree(path.folder, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(tmp_path / "work", capsys)
