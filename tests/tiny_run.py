"""A model of 18,000 parameters, the data it trains on, and a listener that can end a run anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genoctx.config import Config, load_config
from genoctx.engine.engine import Engine
from genoctx.genome.store import ingest
from genoctx.genome.windows import cut, write_table
from genoctx.model.hybrid import Hybrid
from genoctx.run.evaluate import weights_digest
from genoctx.run.train import Outcome, train

MODEL = """
[model]
vocab_size = 16
hidden_size = 16
num_hidden_layers = 4
first_k_dense_replace = 1
intermediate_size = 32
moe_intermediate_size = 16
n_routed_experts = 2
num_experts_per_tok = 1
hc_mult = 2
linear_num_heads = 2
linear_head_dim = 8
linear_gate_low_rank = 8
num_attention_heads = 2
q_lora_rank = 8
kv_lora_rank = 8
qk_nope_head_dim = 8
v_head_dim = 8
index_n_heads = 2
index_head_dim = 8
index_topk = 64
pad_token_id = -1
"""

RUN = """
[stream]
chunk = 700  # not a divisor of anything
threads = 1

[loss]
balance = 0.01

[optim]
lr = 1e-2
warmup_steps = 2

[train]
steps = 5
rc = true

[checkpoint]
every_steps = 2
every_minutes = 0
keep = 9

[eval]
limit = 1
"""


@dataclass(frozen=True)
class Data:
    """A store and a window table cut from it."""

    store: Path
    windows: Path

    def toml(self) -> str:
        """The whole run as a user would write it."""
        return f'[data]\nstore = "{self.store}"\nwindows = "{self.windows}"\n{MODEL}{RUN}'

    def config(self, folder: Path, *overrides: str) -> Config:
        """The run's config, from a file in ``folder``."""
        path = folder / "run.toml"
        path.write_text(self.toml())
        return load_config(path, None, overrides)


def make_data(folder: Path, fasta: Path, *, context: int, holdout: str, max_n: float = 0.5) -> Data:
    """Ingest ``fasta`` and cut it, both into ``folder``."""
    store = ingest([str(fasta)], folder / "store")
    table, _ = cut(store, context=context, holdout=holdout, max_n=max_n)
    write_table(table, folder / "windows.bed")
    return Data(folder / "store", folder / "windows.bed")


class Listener:
    """A Monitor without a terminal. It counts chunks of both sweeps and of evaluations, and acts at some."""

    def __init__(self, at: dict[int, Callable[[], None]] | None = None) -> None:
        """``at`` maps the number of a chunk (1 is the first) to what happens there."""
        self.at = at or {}
        self.chunks = 0
        self.lines: list[str] = []

    def info(self, text: str = "", *, level: int = 0) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(text)

    def log_to(self, path: Path) -> AbstractContextManager[None]:
        return nullcontext()

    def progress(self, label: str, total: float | None, unit: str) -> AbstractContextManager[_Bar]:
        return nullcontext(_Bar(self))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class _Bar:
    done: float = 0
    begin: float = 0

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def advance(self, n: float = 1) -> None:
        self._listener.chunks += 1
        self._listener.at.get(self._listener.chunks, lambda: None)()

    def update(self, text: str) -> None:
        pass


class Crash(BaseException):
    """As sudden as anything that Python can raise."""


def crash() -> None:
    raise Crash


def run(config: Config, out: Path, listener: Listener | None = None, **more: Any) -> Outcome:
    """``genoctx train`` without its command line."""
    return train(config, source="# mine\n", out=out, monitor=listener or Listener(), **more)


def bits(out: Path, step: int) -> dict[str, bytes]:
    """What a checkpoint of ``step`` holds, byte by byte."""
    folder = out / "checkpoints" / f"step-{step:06d}"
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def metrics(out: Path) -> list[dict[str, Any]]:
    """``metrics.jsonl`` without what differs from machine to machine."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("t", "bases_per_s", "host_peak_bytes")} for line in lines
    ]


def model_digest(model: Hybrid) -> str:
    """What a ledger's header says of these weights."""
    return weights_digest(Engine(model, 1).weights())[0]
