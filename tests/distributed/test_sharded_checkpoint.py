"""Checkpoints of 2 gloo ranks, read by 1, 2 and 4 in any layout, and those of one process read by 2: bit by bit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_worker import CONFIG, SEED, SETTINGS, window, with_adapters
from torch import Tensor

from genoctx.engine.batch import Coefficients
from genoctx.engine.checkpoint import LoopState, read_checkpoint, read_moments, write_checkpoint
from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import Optimizer
from genoctx.errors import InputError
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.lora_file import fingerprint
from genoctx.model.weights import load_model, load_weights, save_weights

WORKER = Path(__file__).with_name("checkpoint_worker.py")
SAVED = {"plain": torch.float32, "experts": torch.bfloat16}
TWO = (
    "save:plain:1:1:layer:float32",
    "save:experts:1:2:keep:bfloat16",
    "load:plain:1:1:layer:float32",
    "load:experts:2:1:layer:bfloat16",
    "load:one:1:2:keep:bfloat16",
    "start:one:1:1:layer:bfloat16",
    "fresh:float32:1:1:layer:float32",
    "fresh:bfloat16:1:2:keep:bfloat16",
    "adapt:adapters:2:1:keep:float32",
)
FOUR = ("load:plain:2:2:keep:float32", "load:experts:1:1:layer:bfloat16", "load:one:1:2:layer:bfloat16")


def start(folder: Path, world: int, *cases: str) -> None:
    (folder / f"meeting-{world}").unlink(missing_ok=True)  # a used one leads nobody together
    command = [sys.executable, str(WORKER), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), *cases], stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "\n".join(said)


def state(model: Hybrid, optimizer: Optimizer) -> dict[str, Tensor]:
    weights = {f"model.{name}": p.detach().clone() for name, p in model.named_parameters()}
    return weights | {key: value.clone() for key, value in optimizer.state()}


def one_process(folder: Path) -> dict[str, Tensor]:
    """A checkpoint of one process, in bfloat16 with float32 masters, after a step."""
    model = build(CONFIG, dtype=torch.bfloat16, seed=SEED)
    optimizer = Optimizer(model, SETTINGS)
    Engine(model, 16, Coefficients()).train_step([window(0)], optimizer, 1e-2)
    folder.mkdir()
    write_checkpoint(folder, model, optimizer, LoopState(1, 7))
    return state(model, optimizer)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks, then four, have left everything."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.save(one_process(folder / "one"), folder / "one.pt")
    (folder / "base").mkdir()
    save_weights(build(CONFIG, seed=SEED + 1), folder / "base")
    start(folder, 2, *TWO)
    start(folder, 4, *FOUR)
    return folder


def found(folder: Path, what: str) -> dict[str, Any]:
    made: dict[str, Any] = torch.load(folder / f"{what}.pt")
    return made


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor], *but: str) -> None:
    """The same names, dtypes and bits, but for names that begin with ``but``."""
    names = {name for name in left.keys() | right.keys() if not name.startswith(but or ("-",))}
    assert names and names <= left.keys() and names <= right.keys(), names - (left.keys() & right.keys())
    for name in names:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("name", SAVED)
def test_one_process_reads_what_ranks_wrote(ran: Path, name: str) -> None:
    saved = found(ran, f"{name}.save.2")
    model = build(CONFIG, dtype=SAVED[name], seed=None)
    optimizer = Optimizer(model, SETTINGS)
    assert read_checkpoint(ran / name, model, optimizer) == LoopState(1, 7)
    assert_same(state(model, optimizer), saved, "next.")
    loaded = dict(load_model(ran / name, dtype=SAVED[name]).named_parameters())
    assert all(torch.equal(loaded[key[6:]], saved[key]) for key in saved if key.startswith("model."))
    again = Optimizer(model, SETTINGS)
    read_moments(ran / name, again)
    assert_same(dict(again.state()), dict(optimizer.state()))


@pytest.mark.parametrize("world, name", [(2, "plain"), (2, "experts"), (4, "plain"), (4, "experts")])
def test_ranks_in_another_layout_read_it(ran: Path, world: int, name: str) -> None:
    """Also what they saved while a further step was taken: nothing of that step is in it."""
    saved, loaded = found(ran, f"{name}.save.2"), found(ran, f"{name}.load.{world}")
    assert_same(loaded, saved, "next.")
    moved = [key for key in saved if key.startswith("next.exp_avg.") and saved[key].any()]
    assert any(not torch.equal(saved[key], saved[key.removeprefix("next.")]) for key in moved)


def test_a_resumed_step_is_the_uninterrupted_one(ran: Path) -> None:
    assert_same(found(ran, "plain.load.2"), found(ran, "plain.save.2"))


def test_ranks_read_a_checkpoint_of_one_process(ran: Path) -> None:
    one = found(ran, "one")
    for what in ("one.load.2", "one.load.4", "one.start.2"):
        assert_same(found(ran, what), one, "next.")


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_parts_are_drawn_as_one_process_draws_the_whole(ran: Path, name: str) -> None:
    whole = build(CONFIG, dtype=getattr(torch, name), seed=SEED)
    drawn = found(ran, f"{name}.fresh.2")
    for key, p in whole.named_parameters():
        assert torch.equal(p, drawn[f"model.{key}"]), key


def test_the_format_is_that_of_torch(ran: Path) -> None:
    """``dcp.load`` of any program reads the same; every byte of a replicated tensor is there once."""
    saved = found(ran, "experts.save.2")
    wanted = {key: torch.empty_like(t) for key, t in saved.items() if key.startswith("model.")}
    dcp.load(wanted, checkpoint_id=ran / "experts" / "shards", no_dist=True)
    assert all(torch.equal(wanted[key], saved[key]) for key in wanted)
    tensors = sum(t.nbytes for key, t in saved.items() if not key.startswith("next."))
    files = sum(path.stat().st_size for path in (ran / "experts" / "shards").iterdir())
    entries = 2 * len(saved)  # boxes; torch adds about 1.5 KiB to each
    assert tensors < files < tensors + 2048 * entries
    assert {path.name for path in (ran / "experts").iterdir()} == {"shards", "config.json", "state.json"}


def test_adapters_of_ranks_are_those_of_one_process(ran: Path) -> None:
    """Drawn and saved the same way: no weight of the base is in the checkpoint, and one process goes on from it."""
    folder, saved = ran / "adapters", found(ran, "adapters.adapt.2")
    assert {path.name for path in folder.iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "base.json",
        "config.json",
        "optimizer.safetensors",
        "state.json",
    }
    model = build(CONFIG, seed=None)
    load_weights(model, ran / "base")
    with_adapters(ran / "base")(model)
    for name, p in model.named_parameters():
        assert torch.equal(p, saved[f"fresh.model.{name}"]), name
    optimizer = Optimizer(model, SETTINGS)
    assert read_checkpoint(folder, model, optimizer) == LoopState(1, 7)
    assert_same(state(model, optimizer), saved, "fresh.", "next.")
    assert not torch.equal(model.lm_head.weight, load_model(ran / "base").lm_head.weight)
    assert json.loads((folder / "base.json").read_text())["digest"] == ""
    assert torch.equal(dict(load_model(folder).named_parameters())["lm_head.weight"], model.lm_head.weight)


@pytest.fixture(scope="module")
def refused(ran: Path) -> dict[str, list[Any]]:
    """What each of two ranks is told of checkpoints that cannot be read or written."""
    for name in ("missing", "truncated"):
        shutil.copytree(ran / "plain", ran / name)
    (ran / "missing/shards/__1_0.distcp").unlink()
    with (ran / "truncated/shards/__0_0.distcp").open("r+b") as file:
        file.truncate(1000)
    (ran / "other").mkdir()
    small = build(CONFIG, seed=0)
    write_checkpoint(ran / "other", small, Optimizer(small, SETTINGS), LoopState(1, 7))
    (ran / "other/state.json").unlink()
    start(ran, 2, "refuse:full:1:1:layer:float32")
    return found(ran, "full.refuse.2")


@pytest.mark.parametrize(
    "name, file",
    [("missing", "__1_0.distcp is missing"), ("truncated", "__0_0.distcp is truncated: 1,000 of")],
)
def test_a_shard_that_is_missing_or_short_is_named(
    ran: Path, refused: dict[str, list[Any]], name: str, file: str
) -> None:
    first, second = refused[name]
    assert first == second and first[0] == "InputError" and file in first[1]
    model = build(CONFIG, seed=None)
    with pytest.raises(InputError, match=file):
        read_checkpoint(ran / name, model, Optimizer(model, SETTINGS))
    with pytest.raises(InputError, match=file):
        load_model(ran / name)


def test_every_rank_is_told_what_one_of_them_found(refused: dict[str, list[Any]]) -> None:
    first, second = refused["other"]
    assert first == second and first[0] == "InputError" and "state.json" in first[1]


def test_a_full_disk_of_one_rank_ends_all_with_the_same_message(
    ran: Path, refused: dict[str, list[Any]]
) -> None:
    first, second = refused["full"]
    assert first == second and first[0] == "GenoctxError"
    assert "cannot write the checkpoint of step 1" in first[1] and "rank 1" in first[1]
    assert "free some space" in first[2]
    assert refused["after"] == [None, None]  # and the next one is written
    model = build(CONFIG, seed=None)
    assert read_checkpoint(ran / "full", model, Optimizer(model, SETTINGS)) == LoopState(1, 7)


def test_adapters_on_experts_that_ranks_share_are_refused(refused: dict[str, list[Any]]) -> None:
    first, second = refused["experts"]
    assert first == second and first[0] == "ConfigError"
    assert "gate_proj, up_proj, down_proj" in first[1] and "parallel.ep = 1" in first[2]


def test_the_fingerprint_of_a_base_covers_its_shards(ran: Path, refused: dict[str, list[Any]]) -> None:
    assert len({fingerprint(ran / name) for name in ("plain", "experts", "full", "truncated")}) == 4
