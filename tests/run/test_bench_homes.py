"""``bench homes``: a figure only where the bits agree, and a refusal where files cost too much."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genoctx.cli.app import run
from genoctx.errors import CheckFailed
from genoctx.run import bench_homes
from genoctx.run.bench_homes import FILES, FORGOTTEN, MEMORY, Turn, Variant, homes_of, measure_step, variants
from genoctx.run.plan_layout import MOVABLE


def test_what_the_kernel_forgot_comes_back_bit_by_bit(tmp_path: Path) -> None:
    turns = {
        name: measure_step(homes_of(name, tmp_path), "micro", 96, 32) for name in (MEMORY, FILES, FORGOTTEN)
    }
    assert len({turn.digest for turn in turns.values()}) == 1
    assert all(turn.seconds > 0 and turn.peak_bytes > turn.anonymous_bytes > 0 for turn in turns.values())
    assert list(tmp_path.iterdir()) == []


def test_every_category_has_its_turn() -> None:
    assert [v.name for v in variants(True)] == [MEMORY, FILES, FORGOTTEN, *MOVABLE]
    for name in MOVABLE:
        homes = homes_of(name, Path())
        assert [category for category in MOVABLE if homes[category].moves] == [name]


def taking(factor: float, digest: str = "same") -> list[Variant]:
    """Three rounds in which files take ``factor`` times as long, once with a disturbance."""
    memory = [Turn(seconds, 100 << 20, 50 << 20, "same") for seconds in (1.0, 2.0, 4.0)]
    files = [Turn(s * factor, 100 << 20, 20 << 20, digest) for s in (1.0, 2.0, 8.0)]
    return [Variant(MEMORY, memory), Variant(FILES, files)]


@pytest.mark.parametrize("factor,code", [(1.05, 0), (1.2, 3)])
def test_files_may_cost_a_tenth(
    factor: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_homes, "run_homes", lambda *a, **k: taking(factor))
    assert run(["bench", "homes", "--json"]) == code
    found = json.loads(capsys.readouterr().out)["homes"]
    assert [one["homes"] for one in found] == [MEMORY, FILES]
    assert found[1]["ratio"] == pytest.approx(factor) and max(found[1]["ratios"]) == pytest.approx(2 * factor)
    assert run(["bench", "homes"]) == code
    assert f"\t{factor:.3f}\t" in capsys.readouterr().out


def test_a_killed_measurement_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    """Killed in its first turn with everything in files."""
    command = ["bench", "homes", str(tmp_path), "--preset", "micro", "--contexts", "512", "--chunk", "64"]
    process = subprocess.Popen(
        [sys.executable, "-m", "genoctx", *command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    said = [process.stderr.readline()]
    while said[-1] and f": {FILES}" not in said[-1]:
        said.append(process.stderr.readline())
    assert said[-1], said
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_other_weights_get_no_figure() -> None:
    memory, files = taking(1.0, digest="other")
    with pytest.raises(CheckFailed, match="homes 'files' give other weights than memory"):
        bench_homes._require_same(files, memory)


def test_bench_homes_takes_one_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "homes", "--contexts", "8k,16k"]) == 2
    assert run(["bench", "homes", "nowhere/at/all"]) == 2
    assert "is no folder" in capsys.readouterr().err
