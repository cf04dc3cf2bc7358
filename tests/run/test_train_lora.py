"""Runs that train adapters or a part of the weights: what they save, how they resume, what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import Crash, Data, Listener, crash, metrics, model_digest, run

from genoctx.errors import ConfigError, GenoctxError, InputError
from genoctx.model.weights import load_model
from genoctx.report.ledger import Ledger
from genoctx.run.rehearsal import rehearse

ADAPTERS = ("adapter_model.safetensors", "adapter_config.json", "base.json", "optimizer.safetensors")
LORA = ("lora.rank=2", "lora.targets=['self_attn', 'experts']", "train.steps=3", "loss.balance=0.0")


@pytest.fixture(scope="module")
def start(phage: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a short run, to begin from."""
    folder = tmp_path_factory.mktemp("start")
    config = phage.config(folder, "train.steps=1", "eval.at_start=false", "eval.at_end=false")
    return run(config, folder / "a").checkpoint


def files(checkpoint: Path) -> dict[str, bytes]:
    return {name: (checkpoint / name).read_bytes() for name in ADAPTERS}


def test_a_run_of_adapters_saves_these_and_resumes_bit_for_bit(
    phage: Data, start: Path, tmp_path: Path
) -> None:
    config = phage.config(tmp_path, f"train.init={start}", *LORA)
    listener = Listener()
    whole = run(config, tmp_path / "whole", listener)
    assert "parameters are trained" in listener.text and "adapters of rank 2" in listener.text
    assert not list(whole.checkpoint.glob("model*"))
    assert {p.name for p in whole.checkpoint.iterdir()} >= {*ADAPTERS, "state.json", "config.json"}
    with pytest.raises(Crash):
        run(config, tmp_path / "again", Listener({int(listener.chunks * 0.7): crash}))
    again = run(config, tmp_path / "again")
    assert again.resumed and files(again.checkpoint) == files(whole.checkpoint)
    assert metrics(tmp_path / "again") == metrics(tmp_path / "whole")


def test_the_last_ledger_is_of_base_and_adapters(phage: Data, start: Path, tmp_path: Path) -> None:
    """What `eval` loads from the checkpoint is what the run scored last."""
    outcome = run(phage.config(tmp_path, f"train.init={start}", *LORA), tmp_path / "a")
    before, after = (Ledger.load(tmp_path / f"a/eval/step-00000{n}/ledger.npz") for n in (0, 3))
    assert before.totals().bits_acgt != after.totals().bits_acgt
    assert model_digest(load_model(outcome.checkpoint)) == after.header["checkpoint"]


def test_part_of_the_weights(phage: Data, start: Path, tmp_path: Path) -> None:
    config = phage.config(
        tmp_path, f"train.init={start}", "train.trainable=['layers.3.mlp', 'lm_head']", "train.steps=2"
    )
    outcome = run(config, tmp_path / "a")
    old, new = (load_file(c / "model.safetensors") for c in (start, outcome.checkpoint))
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    assert moved and all("layers.3.mlp" in name or name == "lm_head.weight" for name in moved)
    moments = load_file(outcome.checkpoint / "optimizer.safetensors")
    assert all("layers.3.mlp" in name or "lm_head" in name for name in moments)


def test_adapters_need_weights_to_stand_beside(phage: Data, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="beside weights that are there already") as caught:
        run(phage.config(tmp_path, *LORA), tmp_path / "a")
    assert "train.init" in caught.value.hint


def test_training_nothing_is_refused(phage: Data, start: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trainable = 0"):
        run(phage.config(tmp_path, f"train.init={start}", "train.freeze=['*']"), tmp_path / "a")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("optim.lr=1e-30", "stream.dtype=float32"), "the step is lost beside"),
        (("train.trainable=['pad']",), "'pad' matches no parameter"),
    ],
)
def test_a_first_step_that_moves_nothing_is_refused(
    overrides: tuple[str, ...], message: str, phage: Data, start: Path, tmp_path: Path
) -> None:
    config = phage.config(tmp_path, f"train.init={start}", *overrides)
    with pytest.raises(GenoctxError, match=message):
        run(config, tmp_path / "a")
    assert not (tmp_path / "a/LATEST").exists()


def test_adapters_outside_the_graph_are_named(
    phage: Data, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a layer forgot its adapter."""
    from genoctx.model.adapter import AdaptedLinear

    monkeypatch.setattr(AdaptedLinear, "forward", torch.nn.Linear.forward)
    config = phage.config(tmp_path, f"train.init={start}", *LORA)
    with pytest.raises(GenoctxError, match="step 1 did not move") as caught:
        run(config, tmp_path / "a")
    assert "layers.0.self_attn.q_proj.adapter.lora_B (it has no part in the loss)" in caught.value.message


def test_a_rehearsal_starts_nothing(phage: Data, start: Path, tmp_path: Path) -> None:
    config = phage.config(tmp_path, f"train.init={start}", *LORA)
    found = rehearse(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    listener = Listener()
    run(config, tmp_path / "a", listener)
    assert f"{found['trained_parameters']:,} of " in listener.text
    assert f"{found['windows']:,} training windows of {found['window_bases']:,} bases" in listener.text
    assert (found["step"], found["steps"], found["held_out_windows"]) == (0, 3, 1)
    assert rehearse(config, tmp_path / "a")["step"] == 3
    assert rehearse(config, tmp_path / "a", fresh=True)["step"] == 0
    with pytest.raises(InputError, match=r"lora\.rank 2 -> 4"):
        rehearse(phage.config(tmp_path, f"train.init={start}", *LORA, "lora.rank=4"), tmp_path / "a")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.hidden_size=32",), "hidden_size"),
        (("lora.rank=2", "lora.targets=['indexer']"), "never a target"),
        (("train.freeze=['*']",), "trainable = 0"),
        (("eval.split='test'",), "no window of split"),
        (("train.context='1M'",), "no training window"),
    ],
)
def test_a_rehearsal_finds_what_a_run_would(
    overrides: tuple[str, ...], message: str, phage: Data, start: Path, tmp_path: Path
) -> None:
    with pytest.raises(GenoctxError, match=message):
        rehearse(phage.config(tmp_path, f"train.init={start}", *overrides), tmp_path / "a")
