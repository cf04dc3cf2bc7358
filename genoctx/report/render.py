"""The files of a report: JSON for programs, TSV for pipes, text and HTML for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from genoctx.files import write_atomic
from genoctx.report.html import render_html
from genoctx.report.text import render_text
from genoctx.report.tsv import render_tsv


def render_json(report: dict[str, Any]) -> str:
    """The report as indented JSON."""
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


RENDERERS = {"json": render_json, "txt": render_text, "tsv": render_tsv, "html": render_html}


def save_report(report: dict[str, Any], directory: str | Path) -> list[Path]:
    """Write report.json, .txt, .tsv and .html into ``directory``, over older ones; returns the paths."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending, render in RENDERERS.items():
        paths.append(directory / f"report.{ending}")
        write_atomic(paths[-1], render(report))
    return paths
