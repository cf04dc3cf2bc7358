"""``genoctx bench gpu``: KDA beside plain torch and fla's kernel, and full steps of a mid-size hybrid in bfloat16.

Steps run at growing windows, streamed and (where it fits) as the whole window in one piece with every layer
checkpointed. Times are of the device, after one run to compile; peaks are torch's own count of the device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.stream import train_window
from genoctx.errors import CheckFailed, UsageError
from genoctx.model.hybrid import Hybrid, build
from genoctx.run import peer_fla
from genoctx.run.device import choose_device
from genoctx.run.peer_whole import whole_step
from genoctx_kernels import dispatch
from genoctx_kernels.kda import kda

STREAMED, WHOLE = "streamed", "whole"
LIMIT = 5e-2
"""Largest relative difference between two forms of KDA on bfloat16 inputs, which round to 2^-9."""

TOO_LARGE = "does not fit the card"

HEADS, WIDTH = 64, 128
"""Of the real model's KDA layers."""


@dataclass
class Measured:
    """One form of one thing at one length."""

    what: str
    form: str
    tokens: int
    failed: str = ""
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    """Most device memory that tensors took."""

    @property
    def rate(self) -> float:
        """Tokens per second, median."""
        return self.tokens / statistics.median(self.seconds)


def card() -> str:
    """The GPU's name and memory. Raises UsageError without one."""
    properties = torch.cuda.get_device_properties(choose_device("cuda"))
    return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def run_gpu(preset: str, contexts: Sequence[int], chunk: int, rounds: int) -> list[Measured]:
    """KDA at 8K and 64K tokens, then steps of ``preset``. CheckFailed where two forms of KDA disagree."""
    card()
    found = [m for tokens in (8192, 65536) for m in _measure_kda(tokens, rounds)]
    model = build(preset_model(preset), dtype=torch.bfloat16, device="cuda", seed=0)
    optimizer = Optimizer(model, AdamWSettings())
    for context in contexts:
        streamed, whole = Measured("step", STREAMED, context), Measured("step", WHOLE, context)
        _measure(streamed, partial(_streamed, model, optimizer, context, chunk), min(rounds, 2))
        _measure(whole, partial(_whole, model, optimizer, context), min(rounds, 2))
        found += [streamed, whole]
    return found


def _measure(m: Measured, run: Callable[[], object], rounds: int) -> None:
    """Fill ``m``; what does not fit says so."""
    try:
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            m.seconds.append(begin.elapsed_time(end) / 1e3)
        m.peak_bytes = torch.cuda.max_memory_allocated()
    except torch.cuda.OutOfMemoryError:
        m.failed = TOO_LARGE
        m.seconds.clear()
    torch.cuda.empty_cache()


def _tokens(context: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 4, (1, context), generator=torch.Generator().manual_seed(0))
    targets = torch.roll(tokens, -1, 1)
    targets[:, -1] = -100
    return tokens, targets


def _streamed(model: Hybrid, optimizer: Optimizer, context: int, chunk: int) -> None:
    batch = Batch(*_tokens(context), ("random",))
    per = Denominators.of([batch], model.config.index_kpool)
    train_window(model, batch, bounds(context, chunk), Coefficients(), per)
    optimizer.zero_grad()


def _whole(model: Hybrid, optimizer: Optimizer, context: int) -> None:
    whole_step(model, optimizer, *(x.to(model.device) for x in _tokens(context)))
    optimizer.zero_grad()


def _measure_kda(tokens: int, rounds: int) -> list[Measured]:
    torch.manual_seed(0)
    shape = (1, tokens, HEADS, WIDTH)
    q, k, v, gate = (torch.randn(shape, device="cuda") for _ in range(4))
    inputs = [F.normalize(q, dim=-1).bfloat16(), F.normalize(k, dim=-1).bfloat16(), v.bfloat16()]
    inputs += [-5 * gate.sigmoid(), torch.rand(shape[:3], device="cuda").bfloat16()]
    forms: list[tuple[str, Callable[..., Tensor]]] = [("genoctx", _ours), ("plain torch", _plain)]
    failed = ""
    try:
        forms.append(("fla chunk_kda", peer_fla.kda_chunk()))
    except UsageError as error:
        failed = error.message
    measured, ours = [], None
    for name, op in forms:
        m = Measured("kda", name, tokens)
        measured.append(m)
        try:
            found = _forward_backward(op, inputs)
        except torch.cuda.OutOfMemoryError:
            m.failed = TOO_LARGE
            torch.cuda.empty_cache()
            continue
        ours = ours or found
        for a, b in zip(found, ours, strict=True):
            worst = float((a.float() - b.float()).abs().max() / b.float().abs().max())
            if worst > LIMIT:
                raise CheckFailed(
                    f"kda: {name} differs from ours by {worst:.1e}; figures of different computations are not compared",
                    "run make test-gpu",
                )
        del found
        _measure(m, partial(_forward_backward, op, inputs), rounds)
    if failed:
        measured.append(Measured("kda", "fla chunk_kda", tokens, failed=failed))
    return measured


def _forward_backward(op: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = op(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def _ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    state = torch.zeros(1, HEADS, WIDTH, WIDTH, device=q.device)
    return kda(q * WIDTH**-0.5, k, v, g, beta, state)[0]


def _plain(*inputs: Tensor) -> Tensor:
    with dispatch.plain_torch():
        return _ours(*inputs)
