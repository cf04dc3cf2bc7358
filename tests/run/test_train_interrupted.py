"""An interruption of a run leaves no trace."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_run import Crash, Data, Listener, bits, crash, run
from whole_run import STEPS, Whole, assert_same_run, newest

from genoctx.errors import InputError, StoppedOnRequest
from genoctx.run import trainer
from genoctx.run.rundir import checkpoint_step, checkpoints


@pytest.mark.parametrize("place", [0.0, 0.46, 0.71, 0.999])
def test_killed_anywhere_the_run_ends_with_the_same_bits(place: float, whole: Whole, tmp_path: Path) -> None:
    """From the evaluation before step 1 to the one after the last."""
    chunk = 1 + int(place * whole.listener.chunks)
    with pytest.raises(Crash):
        run(whole.config, tmp_path / "a", Listener({chunk: crash}))
    outcome = run(whole.config, tmp_path / "a")
    assert outcome.resumed == (place > 0)  # before the first finished evaluation nothing has happened
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
        args, env=env, capture_output=True, text=True, check=False, timeout=300, preexec_fn=limit
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
