"""The optimizer step: denominators, refusals, schedule, masters, checkpoints."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients, bounds
from genoctx.engine.checkpoint import LoopState, read_checkpoint, write_checkpoint
from genoctx.engine.engine import Engine
from genoctx.engine.optimizer import AdamWSettings, Optimizer, Schedule
from genoctx.errors import GenoctxError, InputError
from genoctx.model.block import Objectives
from genoctx.model.hybrid import Hybrid, build


def micro(dtype: torch.dtype = torch.float32, balance: bool = False) -> Hybrid:
    return build(preset_model("micro"), dtype=dtype, objectives=Objectives(balance), seed=0)


def window(seed: int, length: int = 120, name: str = "chr1:1-120") -> Batch:
    tokens = torch.randint(0, 4, (1, length), generator=torch.Generator().manual_seed(seed))
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    targets[:, : 10 * seed] = -100  # windows with different numbers of targets
    return Batch(tokens, targets, (name,))


def weights(model: Hybrid) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def test_a_window_without_a_target_is_refused_by_name_and_leaves_the_weights_alone() -> None:
    model = micro()
    before = weights(model)
    empty = Batch(torch.full((1, 50), 4), torch.full((1, 50), -100), ("chrX:1-50",))
    with pytest.raises(InputError, match="chrX:1-50"):
        Engine(model, 16).train_step([window(1), empty], Optimizer(model, AdamWSettings()), 1e-2)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_stopping_inside_a_step_leaves_the_weights_alone() -> None:
    model = micro()
    before = weights(model)

    def stop(tokens: int, sweep: str) -> None:
        if sweep == "backward":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Engine(model, 16).train_step([window(1)], Optimizer(model, AdamWSettings()), 1e-2, stop)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    model = micro()
    with torch.no_grad():
        model.lm_head.weight[0, 0] = math.nan
    with pytest.raises(GenoctxError, match="not finite"):
        Engine(model, 64).train_step([window(1)], Optimizer(model, AdamWSettings()), 1e-2)


@pytest.mark.parametrize("chunk", [120, 17])
def test_accumulation_has_one_global_denominator(chunk: int) -> None:
    """Four windows one by one, and two by two, give the gradients of one mean over all targets."""
    found = []
    rows = [window(s) for s in range(4)]
    pairs = [
        Batch(
            torch.cat([a.tokens_BT, b.tokens_BT]), torch.cat([a.targets_BT, b.targets_BT]), a.names + b.names
        )
        for a, b in (rows[:2], rows[2:])
    ]
    for batches in (rows, rows[::-1], pairs):
        model = micro(torch.float64)
        optimizer = Optimizer(model, AdamWSettings(clip_norm=0.0))
        caught: dict[str, torch.Tensor] = {}
        optimizer.step = lambda rate, norm, m=model, c=caught: c.update(  # type: ignore[method-assign]
            {n: p.grad.clone() for n, p in m.named_parameters() if p.grad is not None}
        )
        result = Engine(model, chunk).train_step(batches, optimizer, 0.0)
        found.append((result.losses.nats / result.losses.targets, caught))
    for loss, gradients in found[1:]:
        assert abs(loss - found[0][0]) < 1e-12
        for name, g in found[0][1].items():
            assert (gradients[name] - g).abs().max() <= 1e-10 * g.abs().max().clamp_min(1e-12), name


def test_a_step_lowers_the_loss() -> None:
    model, batch = micro(balance=True), window(0)
    engine, optimizer = Engine(model, 50, Coefficients(balance=0.01)), Optimizer(model, AdamWSettings())
    losses = [engine.train_step([batch], optimizer, 3e-3).losses.nats for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]


def test_bfloat16_steps_on_float32_masters() -> None:
    model = micro(torch.bfloat16)
    optimizer = Optimizer(model, AdamWSettings())
    name = "layers.0.self_attn.q_proj.weight"
    start = optimizer.masters[name].detach().clone()
    for _ in range(3):
        Engine(model, 50).train_step([window(0)], optimizer, 1e-5)
    master = optimizer.masters[name].detach()
    assert master.dtype == torch.float32
    assert (master != start).float().mean() > 0.9  # steps far below bfloat16's resolution are kept
    assert torch.equal(optimizer.parameters[name].detach(), master.bfloat16())


def test_frozen_indexer_has_no_gradient_and_no_moments() -> None:
    model = micro()
    optimizer = Optimizer(model, AdamWSettings())
    Engine(model, 50).train_step([window(0)], optimizer, 1e-3)
    assert not [n for n in optimizer.parameters if "indexer" in n or "correction_bias" in n]
    assert not [n for n, _ in optimizer.state() if "indexer" in n]


def test_schedule() -> None:
    schedule = Schedule(peak=1.0, steps=10, warmup=4, min_ratio=0.1)
    rates = [schedule.rate(s) for s in range(1, 11)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in pairwise(rates[3:]))
    assert abs(rates[-1] - 0.1) < 1e-12
    assert abs(schedule.rate(7) - 0.55) < 1e-12  # half way down the cosine


def test_clipping_scales_the_whole_gradient() -> None:
    steps = []
    for clip in (0.0, 1e-3):
        model = micro(torch.float64)
        optimizer = Optimizer(model, AdamWSettings(clip_norm=clip, weight_decay=0.0, eps=1.0))
        norm = Engine(model, 64).train_step([window(0)], optimizer, 1.0).grad_norm
        steps.append((norm, weights(model)))
    fresh = weights(micro(torch.float64))
    name = "lm_head.weight"
    moved, clipped = (s[1][name] - fresh[name] for s in steps)
    assert steps[0][0] == steps[1][0] > 1e-3
    # with eps = 1 a first Adam step is nearly the gradient itself
    assert abs((clipped.norm() / moved.norm()).item() - 1e-3 / steps[0][0]) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_continues_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    def run(model: Hybrid, optimizer: Optimizer, steps: range) -> None:
        for s in steps:
            Engine(model, 50).train_step([window(s % 3)], optimizer, 1e-3)

    model = micro(dtype)
    optimizer = Optimizer(model, AdamWSettings())
    run(model, optimizer, range(2))
    write_checkpoint(tmp_path, model, optimizer, LoopState(step=2, bases=7))
    run(model, optimizer, range(2, 5))
    again = build(preset_model("micro"), dtype=dtype, seed=9)
    restored = Optimizer(again, AdamWSettings())
    assert read_checkpoint(tmp_path, again, restored) == LoopState(step=2, bases=7)
    run(again, restored, range(2, 5))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("file", ["optimizer.safetensors", "state.json", "model.safetensors"])
def test_a_broken_checkpoint_is_named(file: str, tmp_path: Path) -> None:
    model = micro()
    optimizer = Optimizer(model, AdamWSettings())
    write_checkpoint(tmp_path, model, optimizer, LoopState(step=0, bases=0))
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:5])
    with pytest.raises(InputError, match=str(tmp_path)):
        read_checkpoint(tmp_path, model, optimizer)


def test_scores_do_not_depend_on_the_chunk() -> None:
    model, batch = micro(), window(0)
    subset = torch.arange(4)
    results = []
    for chunk in (120, 31, 7):
        parts = list(Engine(model, chunk).score(batch, subset))
        assert [(p.start, p.end) for p in parts] == bounds(120, chunk)
        results.append(torch.cat([p.nats.full for p in parts], 1))
    assert (results[0] - results[1]).abs().max() < 2e-5 and (results[0] - results[2]).abs().max() < 2e-5
    loss = Engine(model, 120).train_step([batch], Optimizer(model, AdamWSettings()), 0.0).losses.nats
    assert abs(results[0].sum().item() - loss) < 1e-3
