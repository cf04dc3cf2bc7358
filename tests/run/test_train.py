"""A run from its first line to its last: what it leaves, how it starts, and starts again."""

from __future__ import annotations

import json
import shutil
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_run import Data, Listener, bits, metrics, run
from whole_run import STEPS, Whole, assert_same_run, ledger

from genoctx.errors import InputError
from genoctx.run import loop, trainer
from genoctx.run.rundir import checkpoint_step, checkpoints, latest_checkpoint

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
