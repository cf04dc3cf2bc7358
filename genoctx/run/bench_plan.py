"""``genoctx bench plan``: predicted against measured peak memory, on shapes that the planner was not built with.

Every case trains two steps on windows of full length in a process of its own; the plan saw at most a window of
four chunks of the same shape. The closed form alone, which saw nothing, is printed beside it, and what the whole plan
is off by where ``genoctx train`` runs eight steps, with its evaluations and checkpoints (plan_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from genoctx.config import Config, DataConfig, LossConfig, StreamConfig, TrainConfig, preset_model
from genoctx.model.config import ModelConfig
from genoctx.run.devices import Fleet
from genoctx.run.plan import Limits, make_plan
from genoctx.run.plan_layout import HOST, RUN_BASE, Settings, total
from genoctx.run.plan_probe import case_of, measure
from genoctx.run.plan_run import peak_of_a_run

LIMIT = 0.05
"""Largest relative error that passes."""

_SHAPES: dict[str, dict[str, int]] = {
    "narrow": {"hidden_size": 48, "linear_num_heads": 2, "linear_head_dim": 16, "moe_intermediate_size": 48},
    "wide": {"hidden_size": 160, "linear_num_heads": 5, "linear_head_dim": 32, "intermediate_size": 320},
    "heads": {"linear_num_heads": 8, "linear_head_dim": 16, "num_attention_heads": 6, "v_head_dim": 16},
    "experts": {"n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
    "streams": {"hc_mult": 4, "num_hidden_layers": 6, "hidden_size": 72},
    "vocabulary": {"vocab_size": 1021, "num_hidden_layers": 3, "kv_lora_rank": 48},
}
"""Changes to ``micro``."""
_CUTS = ((16384, 2048), (8192, 1024), (4096, 512), (7000, 1000), (32768, 4096))
_KINDS = (("float32", 1), ("float64", 1), ("float32", 2), ("float32", 1))


@dataclass(frozen=True)
class Checked:
    """One case."""

    shape: str
    length: int
    chunk: int
    batch: int
    dtype: str
    predicted: int
    """Of the steps: the plan without what a run takes beside them."""
    closed: int
    """By the closed form alone."""
    actual: int
    run: int
    """Of eight steps of ``genoctx train``."""

    @property
    def error(self) -> float:
        return self.predicted / self.actual - 1

    @property
    def run_error(self) -> float:
        return (self.predicted + RUN_BASE) / self.run - 1

    @property
    def closed_error(self) -> float:
        return self.closed / self.actual - 1


def cases(count: int) -> Iterator[tuple[str, Config, int]]:
    """(shape, config, window length), always the same ones in the same order."""
    base = preset_model("micro")
    shapes, cuts, kinds = cycle(_SHAPES), cycle(_CUTS), cycle(_KINDS)
    for _ in range(count):
        name, (length, chunk), (dtype, batch) = next(shapes), next(cuts), next(kinds)
        model = replace(base, layer_types=(), mlp_layer_types=(), **_SHAPES[name])
        yield name, _config(model, chunk, dtype, batch), length // batch


def _config(model: ModelConfig, chunk: int, dtype: str, batch: int) -> Config:
    return Config(
        data=DataConfig(store=Path(), windows=Path()),
        model=model,
        stream=StreamConfig(chunk=chunk, dtype=dtype, threads=1),  # type: ignore[arg-type]
        train=TrainConfig(batch=batch, windows_per_step=batch),
        loss=LossConfig(balance=1e-3),
    )


def check(name: str, config: Config, length: int) -> Checked:
    """Predict, then measure."""
    fleet, limits = Fleet(None), Limits(0, 1, 1, {})
    chunk = min(config.stream.chunk, length)
    case, settings = case_of(config, length, chunk), Settings(chunk)
    closed = make_plan(config, fleet, length, limits, settings)
    plan = make_plan(config, fleet, length, limits, settings, measured=measure(case.shortened()))
    actual = measure(replace(case, steps=2)).peak_bytes
    steps, closed_steps = (total(p.bytes[HOST]) - RUN_BASE for p in (plan, closed))
    s, t = config.stream, config.train
    return Checked(
        name, length, chunk, t.batch, s.dtype, steps, closed_steps, actual, peak_of_a_run(config, length)
    )


def run_plan(count: int, say: Callable[[str], None]) -> list[Checked]:
    """Check ``count`` cases, one after the other."""
    found = []
    for name, config, length in cases(count):
        found.append(check(name, config, length))
        c = found[-1]
        say(
            f"{c.shape}, {c.length:,} in {c.chunk:,} x {c.batch}, {c.dtype}: predicted {c.predicted / 2**20:.0f} MiB, "
            f"measured {c.actual / 2**20:.0f} ({c.error:+.1%}; closed form {c.closed_error:+.1%}; "
            f"a run {c.run_error:+.1%})"
        )
    return found


if __name__ == "__main__":
    import sys

    results = run_plan(int(sys.argv[1]), lambda text: print(text, flush=True))
    print(max(abs(r.error) for r in results), max(abs(r.closed_error) for r in results))
