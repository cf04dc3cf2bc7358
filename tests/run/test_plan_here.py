"""A plan for ranks as the engine lays them out, and for the machine that a run is on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from genoctx.cli.app import run
from genoctx.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    HomesConfig,
    ParallelConfig,
    load_plan_config,
    preset_model,
)
from genoctx.engine.mesh import Layout
from genoctx.errors import WouldNotFit
from genoctx.run import plan, plan_train
from genoctx.run.devices import Fleet, parse_fleet
from genoctx.run.plan import limits_of, make_plan, settings_of
from genoctx.run.plan_fit import cheapest_change
from genoctx.run.plan_layout import CHECKPOINTS, DISK, JOURNALS

LENGTH = 4096


class Ear:
    def info(self, text: str = "", *, level: int = 0) -> None:
        del text, level


def micro(**changes: object) -> Config:
    config = Config(data=DataConfig(store=Path(), windows=Path()), model=preset_model("micro"))
    return replace(config, **changes)  # type: ignore[arg-type]


def fitted(config: Config, out: Path, device: str = "cpu", ranks: int = 1) -> Config:
    return plan_train.fitted(config, LENGTH, device, out, Ear(), ranks, ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        ("b200:64", []),
        ("b200:100", []),
        ("b200:12", ["parallel.dp=4"]),
        ("h200:8", ["parallel.cp=3"]),
        ("cpu:4", ["parallel.cp=2"]),
        ("cpu:3", ["parallel.cp=2"]),
    ],
)
def test_every_layout_is_one_of_the_engine_and_is_told(text: str, edits: list[str]) -> None:
    config, fleet = load_plan_config(None, "glm-5.3-flash", edits), parse_fleet(text)
    given = settings_of(config, fleet, LENGTH)
    made = plan.as_configured(config, fleet, given)
    found = Layout.of(fleet.count, cp=given.cp, ep=given.ep, experts=config.model.n_routed_experts)
    assert found.dp * found.cp == fleet.count and given.cp <= fleet.in_node
    assert (made.cp, made.ep) == (config.parallel.cp, config.parallel.ep)


def test_settings_name_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "--preset", "glm-5.3-flash", "--device", "b200:64", "--context", "1M", "--fit", "auto"]
    assert run([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["set"][:2] == ["parallel.cp=8", "parallel.ep=32"]
    again = [part for edit in found["set"] for part in ("--set", edit)]
    assert run([*args[:-2], *again, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == found["bytes"]
    assert run([*args, "--set", "parallel.dp=2", "--set", "parallel.cp=8"]) == 0
    said = capsys.readouterr().err
    assert "ranks: cp 8, dp 8, ep 32" in said and "--set parallel.dp=0" in said


def test_a_run_on_many_devices_is_told_of_another_layout() -> None:
    """As configured, every rank has a window of its own and all the experts."""
    config, fleet = load_plan_config(None, "glm-5.3-flash"), parse_fleet("b200:64")
    alone = replace(settings_of(config, fleet, 1 << 20), cp=1, ep=1)
    refused = make_plan(config, fleet, 1 << 20, limits_of(fleet), alone)
    assert not refused.fits
    assert cheapest_change(config, refused).startswith("set parallel.cp=8, parallel.ep=32")


def test_a_run_may_keep_the_checkpoints_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = micro(checkpoint=CheckpointConfig(keep=3))
    disk = make_plan(
        config, Fleet(None), LENGTH, limits_of(Fleet(None)), settings_of(config, Fleet(None), LENGTH)
    )
    needed = disk.bytes[DISK]
    assert set(needed) == {CHECKPOINTS, JOURNALS}
    monkeypatch.setattr(
        plan_train, "limits_of", lambda *a, **k: plan.Limits(0, 1 << 40, sum(needed.values()) // 2, {})
    )
    out = tmp_path / "run"
    with pytest.raises(WouldNotFit, match="the disk is short"):
        fitted(config, out)
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints/model.safetensors").write_bytes(bytes(sum(needed.values()) // 2 + 4096))
    assert fitted(config, out) == config


def test_a_gpu_is_judged_with_the_memory_of_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_train, "local_fleet", lambda named, device: parse_fleet("h200"))
    away = micro(homes=HomesConfig(moments="host", parameters="host"))
    monkeypatch.setattr(plan, "available_memory", lambda: 64 << 30)
    assert fitted(away, tmp_path / "run", "cuda") == away
    monkeypatch.setattr(plan, "available_memory", lambda: 1 << 30)
    with pytest.raises(WouldNotFit, match="host memory is short"):
        fitted(away, tmp_path / "run", "cuda")


@pytest.mark.parametrize(
    "wrong", [["--disk", "0"], ["--host-ram", "0G"], ["--lora", "-3"], ["--device", "cpu:0"]]
)
def test_amounts_that_make_no_sense(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--preset", "micro", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


def test_one_process_is_planned_without_the_ranks_of_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It walks whole chunks, whatever [parallel] says of ranks that share them."""
    here = Fleet(None)
    alone = make_plan(micro(), here, LENGTH, limits_of(here), settings_of(micro(), here, LENGTH))
    room = plan.Limits(0, sum(alone.bytes["host"].values()) - 1, 1 << 50, {})
    monkeypatch.setattr(plan_train, "limits_of", lambda *a, **k: room)
    monkeypatch.setattr(plan_train, "peak_resident_memory", lambda: 0)
    monkeypatch.setattr(plan_train, "measure_chunk", lambda *a: None)
    with pytest.raises(WouldNotFit, match="host memory is short"):
        fitted(micro(parallel=ParallelConfig(cp=8)), tmp_path / "run")
