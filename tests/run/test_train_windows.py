"""Which windows a run takes, in which batches, and which moments it begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_run import Data, Listener, make_data, metrics, run
from whole_run import newest

from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.errors import ConfigError, InputError
from genoctx.model.config import ModelConfig
from genoctx.run.data import open_data, read_batch, training_pieces, windows_of
from genoctx.run.rundir import latest_checkpoint
from genoctx.run.trainer import build_model


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
