"""A run from its first line to its last: what it leaves, and that an interruption leaves no trace."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_run import Crash, Data, Listener, bits, crash, make_data, metrics, run

from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.errors import ConfigError, InputError, StoppedOnRequest
from genoctx.model.config import ModelConfig
from genoctx.report.ledger import Ledger
from genoctx.run import loop, trainer
from genoctx.run.data import open_data, read_batch, training_pieces, windows_of
from genoctx.run.rundir import checkpoint_step, checkpoints, latest_checkpoint
from genoctx.run.trainer import build_model

STEPS = 5


class Whole:
    """The run that nothing interrupts: what all others are compared with."""

    def __init__(self, data: Data, folder: Path) -> None:
        self.out = folder / "whole"
        self.listener = Listener()
        self.config = data.config(folder)
        self.outcome = run(self.config, self.out, self.listener)


@pytest.fixture(scope="module")
def whole(phage: Data, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(phage, tmp_path_factory.mktemp("whole"))


def ledger(out: Path, step: int) -> Ledger:
    return Ledger.load(out / f"eval/step-{step:06d}/ledger.npz")


def newest(out: Path) -> int | None:
    """The step that a resume starts from."""
    found = latest_checkpoint(out)
    return checkpoint_step(found) if found else None


def assert_same_run(out: Path, whole: Whole) -> None:
    """``out`` ends as the uninterrupted run does, bit for bit."""
    assert bits(out, STEPS) == bits(whole.out, STEPS)
    assert metrics(out) == metrics(whole.out)
    for step in (0, STEPS):
        assert ledger(out, step).totals() == ledger(whole.out, step).totals()
    assert not list(out.rglob(".tmp*")) and not list(out.rglob("*.tmp-*"))


# what a run leaves


def test_every_step_has_its_line(whole: Whole) -> None:
    lines = metrics(whole.out)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["bases"] for line in lines] == [2047 * step for step in range(1, 6)]
    assert [line["lr"] for line in lines[:2]] == [0.005, 0.01]
    assert lines[-1]["loss_nats"] < lines[0]["loss_nats"] - 0.1  # 16 tokens, of which 12 never come
    assert whole.outcome.step == STEPS and whole.outcome.bases == 5 * 2047 and not whole.outcome.resumed


def test_checkpoints_stand_where_the_config_says(whole: Whole) -> None:
    assert [checkpoint_step(c) for c in checkpoints(whole.out)] == [2, 4, 5]
    assert whole.outcome.checkpoint == latest_checkpoint(whole.out)
    two, four = (bits(whole.out, step)["model.safetensors"] for step in (2, 4))
    assert two != four


def test_old_checkpoints_go(phage: Data, tmp_path: Path) -> None:
    run(phage.config(tmp_path, "checkpoint.keep=1", "train.steps=4", "eval.at_end=false"), tmp_path / "a")
    assert [checkpoint_step(c) for c in checkpoints(tmp_path / "a")] == [4]


def test_the_ledgers_of_before_and_after(whole: Whole) -> None:
    before, after = ledger(whole.out, 0), ledger(whole.out, STEPS)
    assert before.header["checkpoint"] != after.header["checkpoint"]
    assert after.totals().bits_full < before.totals().bits_full
    for step, found in ((0, before), (STEPS, after)):
        sums = found.totals()
        assert json.loads((whole.out / f"eval/step-{step:06d}/summary.json").read_text()) == {
            "schema": 1,
            "step": step,
            "bits_full": sums.bits_full,
            "bits_acgt": sums.bits_acgt,
            "scored_bases": 2047,
            "windows": 1,
        }


def test_the_number_of_bases_per_second_counts_targets(
    gapped: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not tokens: a window half full of N is not read twice as fast. The clock here ticks once a look."""
    ticks = count(0, 10)
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)), monotonic=time.monotonic)
    monkeypatch.setattr(loop, "time", clock)
    table = tmp_path / "swapped.bed"
    table.write_text(gapped.windows.read_text().replace("\tholdout\t", "\ttrain\t"))
    data = Data(gapped.store, table)
    sizes = [
        "eval.at_start=false",
        "eval.at_end=false",
        "train.context=256",
        "train.steps=20",
        "train.rc=false",
    ]
    run(data.config(tmp_path, *sizes), tmp_path / "a")
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    seen = [b["bases"] - a["bases"] for a, b in zip([{"bases": 0}, *lines[:-1]], lines, strict=True)]
    assert [line["bases_per_s"] for line in lines] == [n / 10 for n in seen]
    assert len(set(seen)) > 2 and max(seen) == 255 and 0 < min(seen) < 200  # every piece has its own count


# interruptions


@pytest.mark.parametrize("place", [0.0, 0.46, 0.71, 0.999])
def test_killed_anywhere_the_run_ends_with_the_same_bits(place: float, whole: Whole, tmp_path: Path) -> None:
    """From the evaluation before step 1 to the one after the last."""
    chunk = 1 + int(place * whole.listener.chunks)
    with pytest.raises(Crash):
        run(whole.config, tmp_path / "a", Listener({chunk: crash}))
    outcome = run(whole.config, tmp_path / "a")
    assert outcome.resumed
    assert_same_run(tmp_path / "a", whole)


def test_killed_again_and_again(whole: Whole, tmp_path: Path) -> None:
    for _ in range(20):
        try:
            run(
                whole.config, tmp_path / "a", Listener({14: crash})
            )  # two steps have ten, and one evaluation three
            break
        except Crash:
            continue
    assert_same_run(tmp_path / "a", whole)


def test_a_crash_while_saving_costs_only_the_last_steps(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def dies_the_second_time(folder: Path, *state: object) -> None:
        written.append(folder)
        if len(written) == 2:
            (folder / "model.safetensors").write_bytes(b"half")
            crash()
        real(folder, *state)  # type: ignore[arg-type]

    real = trainer.write_checkpoint
    monkeypatch.setattr(trainer, "write_checkpoint", dies_the_second_time)
    with pytest.raises(Crash):
        run(whole.config, tmp_path / "a")
    assert [checkpoint_step(c) for c in checkpoints(tmp_path / "a")] == [2]
    run(whole.config, tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


def test_without_its_newest_checkpoint_a_run_goes_on_from_the_one_before(
    whole: Whole, tmp_path: Path
) -> None:
    shutil.copytree(whole.out, tmp_path / "a")
    broken = tmp_path / "a/checkpoints/step-000005"
    (broken / "model.safetensors").write_bytes(bits(whole.out, STEPS)["model.safetensors"][:-100])
    (tmp_path / "a/eval/step-000005/ledger.npz").unlink()
    with pytest.raises(InputError, match="step-000005") as caught:
        run(whole.config, tmp_path / "a")
    assert "remove this checkpoint" in caught.value.hint
    shutil.rmtree(broken)
    listener = Listener()
    run(whole.config, tmp_path / "a", listener)
    assert "resuming after step 4 of 5" in listener.text
    assert_same_run(tmp_path / "a", whole)


def signalled(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(("chunk", "step"), [(1, 0), (11, 1), (20, 3)])
def test_ctrl_c_saves_and_the_same_command_goes_on(
    chunk: int, step: int, whole: Whole, tmp_path: Path
) -> None:
    """Also in the evaluation before step 1: its three chunks are the first."""
    with pytest.raises(StoppedOnRequest, match=f"stopped by SIGINT after step {step} of 5"):
        run(whole.config, tmp_path / "a", Listener({chunk: signalled(signal.SIGINT)}))
    assert newest(tmp_path / "a") == step
    assert (tmp_path / "a/eval/step-000000/ledger.npz").exists() == (chunk > 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(whole.config, tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


def test_a_second_ctrl_c_ends_at_once(whole: Whole, tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(whole.config, tmp_path / "a", Listener({20: twice}))
    assert newest(tmp_path / "a") == 2, "nothing was saved any more"
    run(whole.config, tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


KILLER = """
import os, signal
from genoctx.run.stop import StopSignals

check, seen = StopSignals.check, []

def counted(self):
    seen.append(1)
    if len(seen) == int(os.environ["AT_CHUNK"]):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    check(self)

StopSignals.check = counted
"""


def command(
    config: Path, out: Path, folder: Path, number: int = 0, at: int = 0, file_size: int = 0
) -> subprocess.CompletedProcess[str]:
    """``genoctx train`` in a process that sends itself a signal at a chunk, or may write no large file."""
    (folder / "sitecustomize.py").write_text(KILLER)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "AT_CHUNK": str(at), "SIGNAL": str(number)}

    def limit() -> None:
        if file_size:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    args = [sys.executable, "-m", "genoctx", "train", str(config), "-o", str(out)]
    return subprocess.run(
        args, env=env, capture_output=True, text=True, check=False, timeout=60, preexec_fn=limit
    )


@pytest.mark.parametrize(
    ("number", "code", "checkpoint"), [(signal.SIGKILL, -signal.SIGKILL, 2), (signal.SIGTERM, 75, 3)]
)
def test_a_real_process_is_ended_by_a_signal(
    number: int, code: int, checkpoint: int, whole: Whole, phage: Data, tmp_path: Path
) -> None:
    phage.config(tmp_path)
    done = command(tmp_path / "run.toml", tmp_path / "a", tmp_path, number, at=26)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert newest(tmp_path / "a") == checkpoint
    if code == 75:
        assert "error: stopped by SIGTERM after step 3 of 5\nhint: the same command goes on" in done.stderr
        assert (
            "stopped by SIGTERM after step 3 of 5" in (tmp_path / "a/train.log").read_text().splitlines()[-1]
        )
        again = command(tmp_path / "run.toml", tmp_path / "a", tmp_path)
        assert again.returncode == 0, again.stderr
        assert "resuming after step 3 of 5" in again.stderr
    else:
        assert run(whole.config, tmp_path / "a").resumed
    assert_same_run(tmp_path / "a", whole)


def test_a_disk_that_takes_no_checkpoint(whole: Whole, phage: Data, tmp_path: Path) -> None:
    """The files of a checkpoint are the only ones above 16 KiB."""
    phage.config(tmp_path)
    done = command(tmp_path / "run.toml", tmp_path / "a", tmp_path, file_size=16384)
    assert done.returncode == 1
    assert f"error: cannot write the checkpoint of step 2 into {tmp_path}/a/checkpoints: " in done.stderr
    assert "hint: free some space" in done.stderr
    assert not list((tmp_path / "a/checkpoints").iterdir()), "half a checkpoint helps nobody"
    run(whole.config, tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


# starting, and starting again


def test_a_finished_run_says_so_and_builds_nothing(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole.out, tmp_path / "a")
    monkeypatch.setattr(trainer, "build_model", None)
    listener = Listener()
    outcome = run(whole.config, tmp_path / "a", listener)
    assert listener.lines == [f"nothing to do: {tmp_path}/a has all of its 5 steps; --fresh starts over"]
    assert (outcome.step, outcome.bases, outcome.resumed) == (5, whole.outcome.bases, True)
    assert_same_run(tmp_path / "a", whole)


def test_a_run_that_lacks_only_its_last_evaluation_makes_up_for_it(whole: Whole, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "a")
    (tmp_path / "a/eval/step-000005/ledger.npz").unlink()
    listener = Listener()
    run(whole.config, tmp_path / "a", listener)
    assert listener.chunks == 3  # of the one held-out window
    assert_same_run(tmp_path / "a", whole)


def test_a_changed_key_is_named_and_nothing_is_touched(whole: Whole, phage: Data, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in whole.out.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError) as caught:
        run(phage.config(tmp_path, "optim.lr=0.5", "model.hidden_size=32"), whole.out)
    assert "optim.lr 0.01 -> 0.5" in caught.value.message
    assert "model.hidden_size 16 -> 32" in caught.value.message
    assert "--fresh" in caught.value.hint
    assert before == {p: p.read_bytes() for p in whole.out.rglob("*") if p.is_file() and p.name != ".lock"}


def test_other_windows_do_not_continue_a_run(whole: Whole, phage: Data, tmp_path: Path) -> None:
    table = tmp_path / "other.bed"
    table.write_text("".join(phage.windows.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="read another windows"):
        run(Data(phage.store, table).config(tmp_path), whole.out)


def test_nothing_held_out_is_said_before_the_first_step(phage: Data, tmp_path: Path) -> None:
    config = phage.config(tmp_path, "eval.at_start=false", 'eval.split="test"')
    listener = Listener()
    with pytest.raises(InputError, match="no window of split 'test'"):
        run(config, tmp_path / "a", listener)
    assert listener.chunks == 0


def test_a_run_of_no_steps_is_an_evaluation(phage: Data, tmp_path: Path) -> None:
    outcome = run(phage.config(tmp_path, "train.steps=0"), tmp_path / "a")
    assert outcome.step == 0
    assert ledger(tmp_path / "a", 0).totals().count == 2047
    assert [checkpoint_step(c) for c in checkpoints(tmp_path / "a")] == [0]


def test_a_run_can_start_from_the_weights_of_another(whole: Whole, phage: Data, tmp_path: Path) -> None:
    start = whole.out / "checkpoints/step-000005"
    run(phage.config(tmp_path, "train.steps=0", f"train.init={start}"), tmp_path / "a")
    assert bits(tmp_path / "a", 0)["model.safetensors"] == bits(whole.out, 5)["model.safetensors"]


# windows


def test_a_window_without_a_target_is_refused_by_name_before_the_first_step(
    gapped: Data, tmp_path: Path
) -> None:
    table = tmp_path / "swapped.bed"
    table.write_text(gapped.windows.read_text().replace("\tholdout\t", "\ttrain\t"))
    config = Data(gapped.store, table).config(tmp_path, "eval.at_start=false", "eval.at_end=false")
    listener = Listener()
    with pytest.raises(InputError, match="window gaps:2561-3072 has no base to predict") as caught:
        run(config, tmp_path / "a", listener)
    assert "--max-n" in caught.value.hint
    assert listener.chunks == 0 and newest(tmp_path / "a") is None


def test_a_window_without_a_target_leaves_weights_alone(gapped: Data, tmp_path: Path) -> None:
    config = gapped.config(tmp_path)
    data = open_data(gapped.store, gapped.windows, config.model)
    good, bad = windows_of(data, "train")[0], windows_of(data, "holdout")[5]
    model = build_model(config)
    before = [p.detach().clone() for p in model.parameters()]
    engine, optimizer = Engine(model, 100), Optimizer(model, AdamWSettings())
    with pytest.raises(InputError, match="window gaps:2561-3072 has no base to predict"):
        engine.train_step([read_batch(data, [good]), read_batch(data, [bad])], optimizer, 1e-2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    engine.train_step([read_batch(data, [good])], optimizer, 1e-2)  # the engine is still of use
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_pieces_of_nothing_but_gaps_are_left_out_and_counted(tmp_path: Path) -> None:
    fasta = tmp_path / "x.fa"
    fasta.write_text(f">a\n{'ACGT' * 16}{'N' * 64}A{'R' * 63}{'ACGT' * 16}\n>b\n{'ACGT' * 64}\n")
    made = make_data(tmp_path, fasta, context=256, holdout="b", max_n=1.0)
    pieces, empty = training_pieces(open_data(made.store, made.windows, ModelConfig(vocab_size=16)), 64)
    assert empty == 2  # the third piece has a base, but none before it to predict it from
    assert [(p.start, p.end) for p in pieces] == [(0, 64), (192, 256)]
    assert len({p.name for p in pieces}) == 2


def test_windows_shorter_than_the_training_context(phage: Data, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds 4,096 bases"):
        run(phage.config(tmp_path, 'train.context="4k"'), tmp_path / "a")


def test_how_windows_are_batched_does_not_matter(phage: Data, tmp_path: Path) -> None:
    """Four windows a step, swept one, two or four at a time: one loss and one set of weights."""
    found = []
    for batch in (1, 2, 4):
        sizes = ["train.windows_per_step=4", f"train.batch={batch}", "train.context=512", "train.steps=2"]
        exact = ["stream.dtype=float64", "loss.balance=0.0", "eval.at_start=false", "eval.at_end=false"]
        out = tmp_path / str(batch)
        run(phage.config(tmp_path, *sizes, *exact), out)
        found.append((metrics(out), load_file(out / "checkpoints/step-000002/model.safetensors")))
    lines, weights = found[0]
    for other_lines, other_weights in found[1:]:
        for a, b in zip(lines, other_lines, strict=True):
            assert abs(a["loss_nats"] - b["loss_nats"]) <= 1e-12 and a["bases"] == b["bases"]
            assert abs(a["grad_norm"] - b["grad_norm"]) <= 1e-12
        assert weights.keys() == other_weights.keys()
        assert max(float((weights[k] - other_weights[k]).abs().max()) for k in weights) <= 1e-12


def test_moments_come_along_where_asked(phage: Data, tmp_path: Path) -> None:
    """A run goes on from another's optimizer; the moments of step 2 are those it would save at step 0."""
    run(phage.config(tmp_path, "train.steps=2"), tmp_path / "a")
    start = latest_checkpoint(tmp_path / "a")
    assert start is not None
    moments = {}
    for name, asked in (("anew", "false"), ("on", "true")):
        config = phage.config(
            tmp_path,
            "train.steps=0",
            f"train.init={start}",
            f"train.init_moments={asked}",
            "eval.at_end=false",
        )
        run(config, tmp_path / name)
        saved = latest_checkpoint(tmp_path / name)
        assert saved is not None
        moments[name] = load_file(saved / "optimizer.safetensors")
    before = load_file(start / "optimizer.safetensors")
    assert moments["anew"] == {} and before.keys() == moments["on"].keys()
    assert all(torch.equal(before[key], moments["on"][key]) for key in before)


def test_moments_that_are_not_there_or_of_another_model(phage: Data, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="init_moments needs a checkpoint"):
        phage.config(tmp_path, "train.init_moments=true")
    run(phage.config(tmp_path, "train.steps=1"), tmp_path / "a")
    start = latest_checkpoint(tmp_path / "a")
    assert start is not None
    config = phage.config(tmp_path, "train.steps=0", f"train.init={start}", "train.init_moments=true")
    broken = load_file(start / "optimizer.safetensors")
    key = next(key for key in broken if key.startswith("exp_avg.") and broken[key].ndim == 2)
    save_file(broken | {key: broken[key][:1].clone()}, start / "optimizer.safetensors")
    with pytest.raises(InputError, match=r"gives no moments: .*the model needs"):
        run(config, tmp_path / "b")
    (start / "optimizer.safetensors").unlink()
    with pytest.raises(InputError, match="gives no moments") as caught:
        run(config, tmp_path / "c")
    assert "init_moments = false" in caught.value.hint
