"""The whole report in all its forms (golden files), its JSON schema, and the page in a real browser."""

from __future__ import annotations

import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from full_report import full_report, metrics
from report_data import losses, make_ledger

from genoctx.report.render import RENDERERS, save_report
from genoctx.report.sources import Beside, leakage_of
from genoctx.report.tables import build_report

GOLDEN = Path(__file__).with_name("golden")
SCHEMA = Path(__file__).parents[2] / "genoctx" / "report" / "report.schema.json"
REPORT = full_report()
ONE_WINDOW = [("chr5", 0, 1_000)]
BARE = build_report(None, make_ledger(ONE_WINDOW, losses(ONE_WINDOW, 1)), {}, block=64)
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "headless_shell",
)


@pytest.mark.parametrize("ending", RENDERERS)
def test_every_form_is_the_golden_one(ending: str) -> None:
    """After a wanted change: GENOCTX_GOLDEN=write pytest tests/report, and read the diff."""
    path = GOLDEN / f"full.{ending}"
    made = RENDERERS[ending](REPORT)
    if os.environ.get("GENOCTX_GOLDEN") == "write":
        path.write_text(made)
    if ending == "json":
        same(json.loads(made), json.loads(path.read_text()))
    else:
        assert made == path.read_text()


def same(found: Any, golden: Any, where: str = "report") -> None:
    """Equal but for the last digits of floats, which differ between processors."""
    assert type(found) is type(golden), where
    if isinstance(found, dict):
        assert list(found) == list(golden), where
        for key in found:
            same(found[key], golden[key], f"{where}.{key}")
    elif isinstance(found, list):
        assert len(found) == len(golden), where
        for i, (a, b) in enumerate(zip(found, golden, strict=True)):
            same(a, b, f"{where}[{i}]")
    elif isinstance(found, float):
        assert found == pytest.approx(golden, rel=1e-9, abs=1e-12), where
    else:
        assert found == golden, where


# schema


def faults(value: Any, schema: dict[str, Any], whole: dict[str, Any], where: str = "$") -> list[str]:
    """Where ``value`` breaks ``schema``, of the keywords that ours uses; any other keyword is a fault."""
    known = {"$ref", "anyOf", "const", "enum", "type", "minimum", "maximum", "required", "properties"}
    known |= {"additionalProperties", "items", "$schema", "title", "$defs"}
    if unknown := set(schema) - known:
        return [f"{where}: keyword {unknown}"]
    if "$ref" in schema:
        return faults(value, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole, where)
    if "anyOf" in schema:
        tried = [faults(value, each, whole, where) for each in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "const" in schema and value != schema["const"]:
        return [f"{where} is {value!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}"]
    if "type" in schema and not is_type(value, schema["type"]):
        return [f"{where} is {type(value).__name__}, not {schema['type']}"]
    found = []
    if isinstance(value, dict):
        found += [f"{where}: no {key}" for key in schema.get("required", ()) if key not in value]
        for key, each in value.items():
            rule = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            if rule is False:
                found.append(f"{where}.{key} is not in the schema")
            else:
                found += faults(each, rule, whole, f"{where}.{key}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            found += faults(each, schema.get("items", {}), whole, f"{where}[{i}]")
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        found.append(f"{where} is {value}")
    return found


def is_type(value: Any, wanted: str | list[str]) -> bool:
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if name in ("number", "integer"):
            if isinstance(value, int if name == "integer" else int | float) and not isinstance(value, bool):
                return True
        elif isinstance(value, kinds[name]):
            return True
    return False


@pytest.mark.parametrize("report", [REPORT, BARE], ids=["full", "bare"])
def test_the_json_follows_the_schema_that_ships(report: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text())
    value = json.loads(RENDERERS["json"](report))
    assert faults(value, schema, schema) == []
    for broken in ({"schema": 1}, {"strata": [{"facet": "gc"}]}, {"main": {}}, {"more": 1}):
        assert faults(value | broken, schema, schema)
    value["baselines"] = [{**REPORT["baselines"][0], "bits": {"value": "2"}}]
    assert faults(value, schema, schema)


# page


class Page(html.parser.HTMLParser):
    """Counts elements and checks that they close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "path", "circle", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("circle", "rect"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("report", [REPORT, BARE], ids=["full", "bare"])
def test_the_page_is_one_file_without_script(report: dict[str, Any]) -> None:
    text = RENDERERS["html"](report)
    page = Page(text)
    assert page.open == [] and len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.seen)
    assert not re.findall(r"(?:src|href)=\"(?!#)|url\(|@import|https?:", text)
    for svg in re.findall(r"<svg .*?</svg>", text, re.DOTALL):
        assert re.search(r'aria-labelledby="([\w-]+-title)', svg) and "<title" in svg
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "A4" in text


def test_names_are_escaped() -> None:
    text = RENDERERS["html"](REPORT)
    assert "chr<X>" not in text and "chr&lt;X&gt;" in text


def test_sections_without_data_are_left_out() -> None:
    full, bare = (Page(RENDERERS["html"](report)).ids for report in (REPORT, BARE))
    gone = {"contexts", "calibration", "strands", "training", "mask", "gc", "region", "scatter-title"}
    assert gone <= set(full) and not gone & set(bare)
    assert {"main", "contig", "blocks", "method", "positions"} <= set(bare)


def test_leakage_above_its_limit_is_a_banner_and_a_gate() -> None:
    leaking = full_report(leak_share=0.25)
    assert leaking["gate"] == [
        "leakage: 25 % of the held-out 31-mers stand in training too, the limit is 1 %"
    ]
    assert '<p class="banner"' in RENDERERS["html"](leaking) and "NOT FOR QUOTING" in RENDERERS["txt"](
        leaking
    )
    assert '<p class="banner"' not in RENDERERS["html"](REPORT) and REPORT["gate"] == []
    unknown, nobody = leakage_of(None, "gone"), {"audited": False, "reason": ""}
    assert unknown == {"audited": None, "reason": "gone"} and leakage_of({"store": "s"}) == nobody
    ledger = make_ledger(ONE_WINDOW, losses(ONE_WINDOW, 1))
    for found, words in ((unknown, "Leakage is not known: gone"), (leakage_of({}), "nobody looked")):
        report = build_report(None, ledger, {}, block=64, beside=Beside(leakage=found))
        assert words in " ".join([*report["notes"], *report["warnings"]]) and report["gate"] == []


def test_no_line_of_the_full_text_is_wider_than_a_terminal() -> None:
    lines = RENDERERS["txt"](REPORT).splitlines()
    assert max(map(len, lines)) <= 80 and not [line for line in lines if line != line.rstrip()]


def test_training_curves_are_thinned_without_losing_a_base() -> None:
    report = build_report(
        None,
        make_ledger(ONE_WINDOW, losses(ONE_WINDOW, 1)),
        {},
        block=64,
        beside=Beside(metrics=metrics(1_000)),
    )
    training = report["training"]
    assert len(training["points"]) == 250 and training["points"][-1]["bases"] == 8_191_000
    assert training["points"][1]["not_finite"] == 1 and training["peaks"] == {"host": (1 << 30) + 1_000_000}
    expected = sum(1.9 + 0.4 * math.exp(-step / 8) for step in (1, 2, 3, 4)) / 4
    assert training["points"][0]["bits"] == pytest.approx(expected, rel=1e-12)


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    make_ledger(ONE_WINDOW, losses(ONE_WINDOW, 1), block=8).save(tmp_path / "ledger.npz")
    code = "import sys; from genoctx.cli.app import run; sys.exit(run(sys.argv[1:]))"
    args = ["report", str(tmp_path / "ledger.npz"), "--block", "64", "-o", str(tmp_path / "out")]
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").is_file()


# browser

BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def browse(page: Path, *flags: str) -> str:
    """What the browser logs while it opens ``page``."""
    profile = page.with_name("profile")
    always = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        "--v=0",
    )
    done = subprocess.run(
        [str(BROWSER), *always, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stderr


def shades(png: bytes) -> set[bytes]:
    """The different pixel rows of a picture: one for an empty page."""
    assert png.startswith(b"\x89PNG")
    data, at, width = b"", 8, int.from_bytes(png[16:20], "big")
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    raw = zlib.decompress(data)
    row = len(raw) // int.from_bytes(png[20:24], "big")
    assert row > width
    return {raw[i : i + row] for i in range(0, len(raw), row)}


@pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(BROWSERS)}")
def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    """Light, dark and on paper; the console stays empty."""
    save_report(REPORT, tmp_path)
    page = tmp_path / "report.html"
    pictures = []
    for scheme in (1, 0):
        picture = tmp_path / f"{scheme}.png"
        flags = (
            f"--screenshot={picture}",
            "--window-size=1000,1400",
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        assert "CONSOLE" not in browse(page, *flags)
        pictures.append(picture.read_bytes())
        assert len(shades(pictures[-1])) > 100
    assert pictures[0] != pictures[1], "the dark page is the light one"
    paper = tmp_path / "report.pdf"
    assert "CONSOLE" not in browse(page, f"--print-to-pdf={paper}")
    assert paper.read_bytes().startswith(b"%PDF") and paper.stat().st_size > 20_000
