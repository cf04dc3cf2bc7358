"""FLOP counts against the table of spec section 6, and the two rates against the two published throughputs."""

from __future__ import annotations

import pytest

from genoctx.model.config import ModelConfig
from genoctx.run.devices import DEVICES
from genoctx.run.plan_flops import (
    CHECKPOINTED,
    NEEDED,
    NEEDED_LORA,
    STREAMED,
    forward_flops,
    mean_selected,
)
from genoctx.run.plan_time import PUBLISHED, arithmetic, published_rates

MODEL = ModelConfig()

# GFLOP a token: forward, needed, executed with full recomputation, LoRA (spec section 6)
TABLE = {
    16384: (36.86, 109.9, 146.7, 73.4),
    131072: (38.32, 111.7, 150.0, 75.0),
    262144: (39.82, 113.2, 153.0, 76.5),
    524288: (42.80, 116.2, 159.0, 79.5),
    1048576: (48.76, 122.1, 170.9, 85.4),
}


@pytest.mark.parametrize("length", TABLE)
def test_the_spec_table(length: int) -> None:
    flops = forward_flops(MODEL, length)
    forward, needed, executed, lora = TABLE[length]
    assert flops.total / 1e9 == pytest.approx(forward, abs=0.011)
    assert NEEDED.per_token(flops) / 1e9 == pytest.approx(needed, abs=0.06)
    assert CHECKPOINTED.per_token(flops) / 1e9 == pytest.approx(executed, abs=0.06)
    assert NEEDED_LORA.per_token(flops) / 1e9 == pytest.approx(lora, abs=0.06)


def test_the_spec_table_part_by_part() -> None:
    parts = {name: value / 1e9 for name, value in vars(forward_flops(MODEL, 1 << 20)).items()}
    expected = {
        "kda_projections": 9.365,
        "kda_core": 0.398,
        "dsa_projections": 2.584,
        "dsa_attention": 2.952,
        "indexer_projections": 0.164,
        "indexer_scores": 11.903,
        "dense_mlp": 0.906,
        "moe_routed": 16.911,
        "moe_shared": 2.114,
        "moe_router": 0.099,
        "mhc": 0.088,
        "head": 1.269,
    }
    assert parts == {name: pytest.approx(value, abs=6e-4) for name, value in expected.items()}


@pytest.mark.parametrize("length,pool,top", [(1, 4, 3), (7, 4, 1), (100, 4, 3), (101, 5, 2), (12, 4, 3)])
def test_mean_selected_is_the_mean(length: int, pool: int, top: int) -> None:
    counts = [min((t + 1) // pool, top) * pool + (t + 1) % pool for t in range(length)]
    assert mean_selected(length, pool, top) == pytest.approx(sum(counts) / length, rel=1e-12)


def test_a_streamed_step_scores_once() -> None:
    flops = forward_flops(MODEL, 1 << 20)
    assert CHECKPOINTED.per_token(flops) - STREAMED.per_token(flops) == pytest.approx(flops.indexer)


@pytest.mark.parametrize("length,rate", PUBLISHED)
def test_the_slow_end_is_the_published_run(length: int, rate: float) -> None:
    seconds = arithmetic(CHECKPOINTED, forward_flops(MODEL, length), length, DEVICES["b200"], 1)
    assert 64 * length / seconds.slow == pytest.approx(rate, rel=1e-9)
    assert seconds.fast < seconds.slow


def test_the_published_rates_are_far_below_the_peak() -> None:
    trunk, indexer = published_rates()
    assert 70 < trunk < 90
    assert 8 < indexer < 9
