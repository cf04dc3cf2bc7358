"""The plan as a whole: what it chooses, refuses and prints; and the measurement it adds to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from genoctx.cli.app import run
from genoctx.config import Config, DataConfig, StreamConfig, load_plan_config, preset_model
from genoctx.engine.allowed import refuse_homes
from genoctx.errors import UsageError, WouldNotFit
from genoctx.run import cgroups, plan_train
from genoctx.run.bench_plan import LIMIT, cases, check
from genoctx.run.devices import DEVICES, Fleet, parse_bytes, parse_fleet
from genoctx.run.plan import Limits, limits_of, make_plan, settings_of
from genoctx.run.plan_fit import changes, cheapest_change, fit, ladder
from genoctx.run.plan_layout import DEVICE, DISK, HOST, TIERS, total
from genoctx.run.plan_local import _known
from genoctx.run.plan_probe import Measured

GIB = 1 << 30
REAL = load_plan_config(None, "glm-5.3-flash")


def tiny(chunk: int = 256) -> Config:
    nowhere = DataConfig(store=Path(), windows=Path())
    return Config(data=nowhere, model=preset_model("micro"), stream=StreamConfig(chunk=chunk))


def test_predicted_peak_is_within_five_percent() -> None:
    """One of the cases of ``genoctx bench plan``; docs/planning.md has all of them."""
    name, config, length = next(iter(cases(1)))
    config = replace(config, stream=replace(config.stream, chunk=256))
    assert abs(check(name, config, length // 8).error) < LIMIT


def test_bench_cases_differ_and_are_not_the_presets() -> None:
    found = list(cases(24))
    keys = {(name, c.stream.chunk, c.stream.dtype, c.train.batch, length) for name, c, length in found}
    assert len(keys) == 24
    assert all(c.model not in (preset_model("micro"), preset_model("nano")) for _, c, _ in found)


@pytest.mark.parametrize("count,length", [(64, 1 << 20), (128, 1 << 18), (64, 1 << 14)])
def test_what_is_chosen_fits_and_says_how_to_set_it(count: int, length: int) -> None:
    fleet = parse_fleet(f"b200:{count}")
    given = settings_of(REAL, fleet, length)
    found = fit(REAL, fleet, length, limits_of(fleet), given)
    assert found is not None and found.fits
    for tier in TIERS:
        assert total(found.bytes[tier]) <= found.limits.of(tier)
    edits = [e for e in changes(given, found.settings) if not e.startswith("parallel.")]
    again = load_plan_config(None, "glm-5.3-flash", edits)
    same = replace(settings_of(again, fleet, length), keep=found.settings.keep)
    assert same == found.settings


def test_one_h200_does_not_hold_the_real_model() -> None:
    fleet = parse_fleet("h200:1")
    given = settings_of(REAL, fleet, 1 << 20, lora_rank=16)
    plan = make_plan(REAL, fleet, 1 << 20, limits_of(fleet), given)
    assert plan.over(DEVICE) > 400 * GIB
    assert cheapest_change(REAL, plan) == "more devices: h200:8"


@pytest.mark.parametrize(
    "name,device,context",
    [
        ("gpu1-lora-512k", "h200:1", 1 << 19),
        ("gpu1-lora-1m", "h200:1", 1 << 20),
        ("gpu8", "b200:8", 1 << 20),
        ("gpu64", "b200:64", 1 << 20),
    ],
)
def test_a_preset_fits_what_it_is_named_after(name: str, device: str, context: int) -> None:
    config, fleet = load_plan_config(None, name), parse_fleet(device)
    given = settings_of(config, fleet, context)
    refuse_homes(given.homes, gpu=True, ranks=fleet.count)
    assert make_plan(config, fleet, context, limits_of(fleet), given).fits
    if fleet.count > 1:
        assert (given.cp, given.ep) == (config.parallel.cp, config.parallel.ep)


@pytest.mark.parametrize("fleet", [Fleet(None), Fleet(None, 2), parse_fleet("h200:1"), parse_fleet("b200:8")])
def test_nothing_is_offered_that_the_engine_refuses(fleet: Fleet) -> None:
    offered = list(ladder(fleet))
    assert {} in offered and len(offered) > 2
    for homes in offered:
        refuse_homes(homes, gpu=fleet.device is not None, ranks=fleet.count)


def test_homes_that_the_engine_refuses_are_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "--preset", "gpu8", "--device", "b200:8", "--set", "homes.d_latents=host"]
    assert run(args) == 2
    assert "homes.d_latents cannot leave the GPU" in capsys.readouterr().err


def test_the_cheapest_change_is_as_few_edits_as_possible() -> None:
    config, fleet = load_plan_config(None, "gpu1-lora-1m", ["stream.chunk=64k"]), parse_fleet("h200:1")
    plan = make_plan(config, fleet, 1 << 20, limits_of(fleet), settings_of(config, fleet, 1 << 20))
    assert not plan.fits
    change = cheapest_change(config, plan)
    assert change.startswith('set stream.chunk="') and "homes" not in change


def test_a_preset_alone_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Ends well although its longest windows would not fit, for nobody asked for them."""
    assert run(["plan", "--preset", "gpu64", "--device", "b200:64", "--set", "stream.chunk=32k"]) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["#window", "16k", "64k", "256k", "1M"]
    assert rows[1][-1] == "yes" and rows[-1][-1].startswith("no: set ")


def test_traffic_of_offloaded_weights_grows_with_the_number_of_chunks() -> None:
    fleet = parse_fleet("h200:1")
    given = replace(settings_of(REAL, fleet, 1 << 20, lora_rank=16), weights_on_host=True)
    moved = []
    for chunk in (1 << 12, 1 << 14):
        plan = make_plan(REAL, fleet, 1 << 20, limits_of(fleet), replace(given, chunk=chunk))
        moved.append(plan.cost.traffic["host link"])
        weights = plan.bytes[HOST]["parameters"]
        assert moved[-1] == pytest.approx(weights * (3 * (1 << 20) / chunk - 1), rel=0.01)
        assert plan.binding == "device memory" or plan.cost.binding == "host link"
    assert moved[0] / moved[1] == pytest.approx(4, rel=0.01)


def test_a_processor_gets_a_smaller_chunk_then_files() -> None:
    config, length = tiny(16384), 1 << 16
    fleet, given = Fleet(None), settings_of(tiny(16384), Fleet(None), 1 << 16)
    whole = make_plan(config, fleet, length, Limits(0, 1 << 50, 1 << 50, {}), given)
    roomy = fit(config, fleet, length, Limits(0, 600 << 20, 1 << 50, {}), given)
    assert whole.over(HOST) < 0
    assert roomy is not None and roomy.settings.chunk < 16384
    tight = fit(config, fleet, length, Limits(0, 504 << 20, 1 << 50, {}), given)
    assert tight is not None and "file" in tight.settings.homes.values()
    assert tight.bytes[DISK]
    assert fit(config, fleet, length, Limits(0, 300 << 20, 1 << 50, {}), given) is None


def test_a_run_that_would_not_fit_is_refused_before_step_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setattr(plan_train, "limits_of", lambda *a, **k: Limits(0, 600 << 20, 1 << 40, {}))
    monkeypatch.setattr(plan_train, "peak_resident_memory", lambda: 0)
    monkeypatch.setattr(plan_train, "measure_chunk", lambda *a: None)

    class Ear:
        def info(self, text: str = "", *, level: int = 0) -> None:
            said.append(text)

    def go(mode: str) -> Config:
        config = tiny(16384)
        config = replace(config, stream=replace(config.stream, fit=mode))  # type: ignore[arg-type]
        return plan_train.fitted(config, 1 << 16, "cpu", tmp_path / "run", Ear())  # type: ignore[arg-type]

    with pytest.raises(WouldNotFit, match="host memory is short") as refused:
        go("check")
    assert "stream.chunk" in refused.value.hint and refused.value.exit_code == 4
    chosen = go("auto")
    assert chosen.stream.chunk < 16384 and said[0].startswith("stream.fit: ")
    assert go("off").stream.chunk == 16384


@pytest.mark.parametrize("room,asked", [(1.1, 1), (0.9, 1), (2.0, 0), (0.5, 0)])
def test_a_close_plan_is_measured_before_a_run_is_refused(
    room: float, asked: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The closed form says what it takes; the measurement, that it is half as much or twice."""
    config, length, fleet = tiny(1024), 1 << 14, Fleet(None)
    closed = make_plan(config, fleet, length, Limits(0, 1, 1, {}), settings_of(config, fleet, length))
    taken, calls = total(closed.bytes[HOST]), []

    def measure(*_: object) -> Measured:
        calls.append(1)
        peak = taken // 2 if room < 1 else 2 * taken
        return Measured(length, peak // 2, peak, 1.0, 1.0)

    monkeypatch.setattr(plan_train, "limits_of", lambda *a, **k: Limits(0, int(room * taken), 1 << 50, {}))
    monkeypatch.setattr(plan_train, "peak_resident_memory", lambda: 0)
    monkeypatch.setattr(plan_train, "measure_chunk", measure)
    if room in (1.1, 0.5):
        with pytest.raises(WouldNotFit):
            plan_train.fitted(config, length, "cpu", tmp_path / "run", None)  # type: ignore[arg-type]
    else:
        plan_train.fitted(config, length, "cpu", tmp_path / "run", None)  # type: ignore[arg-type]
    assert len(calls) == asked


def test_the_command_ends_with_4_and_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "--preset", "nano", "--device", "cpu", "--context", "1M", "--no-measure", "--json"]
    assert run([*args, "--host-ram", "1G"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"] and found["binding"] == "host memory" and found["change"].startswith("set ")
    assert run([*args, "--host-ram", "64G"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["seconds_per_window"][0] < found["seconds_per_window"][1]


def test_a_full_disk_is_told_from_too_little_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """No setting makes a checkpoint smaller: what is missing is room on the disk, in a unit that shows it."""
    args = ["plan", "--preset", "micro", "--device", "cpu", "--context", "16k", "--no-measure", "--json"]
    assert run([*args, "--host-ram", "64G", "--disk", "1M"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["change"] == "the disk is short of 15 MiB; make room"
    assert run([*args, "--host-ram", "1M", "--disk", "64G"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert re.match(r"host memory is short of \d+ MiB; make room, and set .*homes", found["change"])


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; from genoctx.cli.app import run\n"
        "code = run(['plan', '--preset', 'glm-5.3-flash', '--device', 'b200:64', '--context', '16k,1M'])\n"
        "assert code == 4, code; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_devices() -> None:
    assert parse_fleet("B200:64") == Fleet(DEVICES["b200"], 64)
    assert parse_fleet("cpu").device is None
    with pytest.raises(UsageError) as wrong:
        parse_fleet("b20:8")
    assert "did you mean b200" in wrong.value.hint
    with pytest.raises(UsageError):
        parse_fleet("h200:many")
    assert _known("NVIDIA H200") == "h200" and _known("NVIDIA GeForce RTX 4090") == "rtx4090"
    assert _known("Tesla V100-SXM2-16GB") == ""


@pytest.mark.parametrize("text,size", [("2TB", 2 * 10**12), ("24G", 24 << 30), ("1.5GiB", 3 << 29), ("7", 7)])
def test_amounts(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


V2 = {
    "job/memory.max": "1000\n",
    "job/memory.current": "300\n",
    "job/memory.stat": "anon 200\ninactive_file 50\n",
    "job/step/memory.max": "max\n",
    "job/step/memory.current": "1\n",
    "memory.max": "5000\n",
    "memory.current": "400\n",
}
V1 = {
    "memory/job/memory.limit_in_bytes": "900\n",
    "memory/job/memory.usage_in_bytes": "100\n",
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
    "memory/memory.usage_in_bytes": "7\n",
}


@pytest.mark.parametrize(
    "files,membership,room",
    [
        (V2, "0::/job/step\n", [750, 4600]),
        (V1, "4:memory:/job\n0::/\n", [800]),
        (V1, "4:cpu,memory:/job/deeper\n", [800]),
        ({}, "", []),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, files: dict[str, str], membership: str, room: list[int]
) -> None:
    """Those of every group above the process, file cache that can go left out."""
    _write(tmp_path, files)
    (tmp_path / "membership").write_text(membership)
    assert cgroups.room(tmp_path, tmp_path / "membership") == room


def test_a_table_of_contexts(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "plan",
        "--preset",
        "glm-5.3-flash",
        "--device",
        "b200:64",
        "--context",
        "16k,1M",
        "--fit",
        "auto",
    ]
    assert run(args) == 0
    captured = capsys.readouterr()
    rows = captured.out.splitlines()
    assert [row.split("\t")[0] for row in rows] == ["#window", "16k", "1M"]
    assert "313,326,811,966 parameters" in captured.err and "24,900 tokens/s" in captured.err
