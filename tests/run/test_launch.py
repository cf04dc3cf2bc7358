"""Which rank a process is, what ranks leave for their launcher, and what a run of many refuses before it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Data

from genoctx import errors
from genoctx.cli import app
from genoctx.config import list_presets, load_plan_config
from genoctx.errors import ConfigError, GenoctxError, LostContact, StoppedOnRequest, UsageError, is_shared
from genoctx.run import launch
from genoctx.run.devices import Fleet, parse_fleet
from genoctx.run.launch import FOLDER, Place, announce, first_node, first_word, hand_over, place
from genoctx.run.plan import Limits, limits_of, make_plan, settings_of
from genoctx.run.train import check_layout


def test_alone_under_torchrun_and_under_slurm() -> None:
    assert place({}) is None
    assert place({"RANK": "0", "WORLD_SIZE": "1"}) is None
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert place(dict(torchrun)) == Place(3, 4, 1, "torchrun")
    assert place({**torchrun, FOLDER: "/x"}) == Place(3, 4, 1, "genoctx")
    slurm = {"SLURM_PROCID": "9", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
    slurm |= {"SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "123456"}
    assert place(slurm) == Place(9, 16, 1, "slurm")
    assert (slurm["MASTER_ADDR"], slurm["MASTER_PORT"]) == ("gpu07", "23456")
    assert place({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}) is None  # the batch script


@pytest.mark.parametrize(
    "env",
    [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "-1", "WORLD_SIZE": "2"}],
)
def test_ranks_that_make_no_sense(env: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="RANK"):
        place(env)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("gpu[3,5]", "gpu3"),
        ("node1,node2", "node1"),
        ("single", "single"),
        ("rack[1-2]-gpu", "rack1-gpu"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


# word from the ranks


def test_the_end_that_came_first_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hand_over(0, GenoctxError("nobody listens"))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert first_word(tmp_path) is None
    clock = iter((20.0, 10.0, 30.0))
    monkeypatch.setattr(launch.time, "time", lambda: next(clock))
    assert hand_over(0, ConfigError("later", "h0"))
    assert hand_over(1, StoppedOnRequest("earlier", "h1"))
    assert hand_over(2, KeyboardInterrupt())
    word = first_word(tmp_path)
    assert type(word) is StoppedOnRequest
    assert (word.message, word.hint, word.exit_code) == ("earlier", "h1", 75)
    announce(1, ready=True)
    assert (tmp_path / "ready-1").read_text() == str(os.getpid())


def test_every_kind_of_error_survives_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    for kind in (e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, GenoctxError)):
        hand_over(0, kind("m", "h"))
        word = first_word(tmp_path)
        assert type(word) is kind and word.message == "m" and word.hint == "h"
    hand_over(0, KeyboardInterrupt())
    assert isinstance(first_word(tmp_path), KeyboardInterrupt)


def test_errors_of_all_ranks_and_of_one() -> None:
    assert is_shared(errors.shared(errors.InputError, "m", "h"))
    assert is_shared(StoppedOnRequest("m")) and is_shared(ConfigError("m"))
    assert not is_shared(errors.InputError("m")) and not is_shared(LostContact("m"))
    assert not is_shared(KeyboardInterrupt())


ENDINGS = """
import sys
import typer
from genoctx.cli.console import Console
from genoctx.cli.ranks import as_rank
from genoctx.errors import *
from genoctx.run.launch import Place

def work():
    raise {error}

try:
    as_rank(Place({rank}, 2, {rank}, "torchrun"), work, Console())
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


@pytest.mark.parametrize(
    ("error", "rank", "launched", "code", "said"),
    [
        ("shared(InputError, 'm', 'h')", 0, False, 2, "error: m\nhint: h\n"),
        ("shared(InputError, 'm', 'h')", 1, False, 2, ""),
        ("StoppedOnRequest('m', 'h')", 0, False, 75, "error: m\nhint: h\n"),
        ("StoppedOnRequest('m', 'h')", 0, True, 0, ""),
        ("InputError('rank 1: m', 'h')", 1, False, 2, "error: rank 1: m\nhint: h\n"),
        ("InputError('rank 1: m', 'h')", 1, True, 2, ""),
        ("LostContact('m', 'h')", 0, True, 1, ""),
        ("LostContact('m', 'h')", 1, False, 1, ""),
        ("KeyboardInterrupt", 1, True, 130, ""),
        ("MemoryError('m')", 1, True, 1, ""),
    ],
)
def test_one_rank_says_how_it_ended(
    error: str, rank: int, launched: bool, code: int, said: str, tmp_path: Path
) -> None:
    """And where ``--nproc`` started it, its launcher does, who finds it in a file."""
    env = {**os.environ, **({FOLDER: str(tmp_path)} if launched else {})}
    done = subprocess.run(
        [sys.executable, "-c", ENDINGS.format(error=error, rank=rank)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert (done.returncode, done.stderr) == (code, said)
    assert (first_word(tmp_path) is not None) == (launched and "LostContact" not in error)


def test_a_stop_is_no_crash_that_torchrun_would_start_anew() -> None:
    stopped = ENDINGS.format(error="StoppedOnRequest('m', 'h')", rank=1)
    env = {**os.environ, "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert subprocess.run([sys.executable, "-c", stopped], check=False, env=env).returncode == 0


FOLLOW = """
import sys, time
from pathlib import Path
from genoctx.run.launch import follow_launcher
follow_launcher()
Path(sys.argv[1]).touch()
time.sleep(300)
"""


@pytest.mark.parametrize("launched", [True, False])
def test_a_rank_ends_with_its_launcher_before_the_ranks_have_met(launched: bool, tmp_path: Path) -> None:
    """Here the launcher is a shell that is gone as soon as the rank follows it."""
    env = {**os.environ, **({FOLDER: str(tmp_path)} if launched else {})}
    follows = tmp_path / "follows"
    shell = f"{sys.executable} -c '{FOLLOW}' '{follows}' >/dev/null 2>&1 & echo $!"
    shell += f"; while [ ! -e '{follows}' ]; do sleep 0.1; done"
    rank = int(
        subprocess.run(
            ["sh", "-c", shell], capture_output=True, text=True, check=True, env=env, timeout=300
        ).stdout
    )
    waited = 0
    while (alive := Path(f"/proc/{rank}").exists()) and waited < (300 if launched else 30):
        threading.Event().wait(0.1)
        waited += 1
    if alive:
        os.kill(rank, signal.SIGKILL)
    assert alive != launched


# refused before anything is built


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["parallel.cp=2"], "3 ranks"),
        (["parallel.dp=2"], "3 ranks"),
        (["parallel.ep=3"], "2 experts"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_layout_that_does_not_come_out(
    settings: list[str],
    words: str,
    more: tuple[str, ...],
    phage: Data,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "run.toml").write_text(phage.toml())
    command = ["train", str(tmp_path / "run.toml"), "-o", str(tmp_path / "run"), "--nproc", "3", *more]
    assert app.run([*command, *(part for text in settings for part in ("--set", text))]) == 2
    said = capsys.readouterr().err
    assert words in said and "hint:" in said
    assert not (tmp_path / "run").exists()


def test_ranks_inside_of_ranks(
    phage: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(phage.toml())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    command = ["train", str(tmp_path / "run.toml"), "-o", str(tmp_path / "run"), "--nproc", "2"]
    assert app.run(command) == 2
    assert "rank 1 of 2 that torchrun started" in capsys.readouterr().err


def test_explain_tells_the_layout(phage: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(phage.toml())
    command = ["train", str(tmp_path / "run.toml"), "-o", str(tmp_path / "run"), "--explain"]
    assert app.run([*command, "--set", "parallel.cp=2"]) == 0
    rows = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["parallel.cp"] == "2\t--set" and rows["parallel.ep"] == "1\tdefault"


# plans


def on(preset: str, fleet: str, *settings: str) -> Any:
    config, machine = load_plan_config(None, preset, settings), parse_fleet(fleet)
    given = settings_of(config, machine, 1 << 20)
    return make_plan(config, machine, 1 << 20, limits_of(machine), given)


@pytest.mark.parametrize(("preset", "fleet"), [("gpu8", "b200:8"), ("gpu64", "b200:64")])
def test_presets_for_clusters_fit_their_cluster(preset: str, fleet: str) -> None:
    plan = on(preset, fleet)
    assert plan.fits
    p, ranks = load_plan_config(None, preset).parallel, plan.fleet.count
    assert (plan.settings.cp, plan.settings.ep, plan.settings.keep) == (p.cp, p.ep, p.keep)
    assert check_layout(load_plan_config(None, preset), ranks).world == ranks


def test_a_layout_that_a_cluster_lacks_the_devices_for_is_replaced() -> None:
    assert on("gpu64", "b200:4").settings.cp == 4
    assert on("gpu64", "b200").settings.cp == 1


@pytest.mark.parametrize("preset", [name for name in list_presets() if name in ("micro", "nano")])
def test_ranks_of_one_machine_share_its_memory(preset: str) -> None:
    """Whatever is sharded is there once; carries, graph and interpreter are there once a rank."""
    config = load_plan_config(None, preset)
    plenty = Limits(0, 1 << 50, 1 << 50, {})
    one, two = (
        make_plan(config, Fleet(None, n), 65536, plenty, settings_of(config, Fleet(None, n), 65536)).bytes[
            "host"
        ]
        for n in (1, 2)
    )
    for name in ("moments", "gradients"):
        assert abs(two[name] - one[name]) <= 2
    for name in ("carries", "latents", "base", "chunk"):
        assert two[name] == 2 * one[name]
