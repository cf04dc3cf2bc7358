"""``genoctx bench kernels``: our ops, forward and backward, beside peers' and our own references.

All run in one process, in turn, on the same inputs; outputs and input gradients must agree first. Peers are
Hugging Face's and fla's plain-torch forms of KDA; the other ops have the equation (``reference.py``) beside.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx.errors import CheckFailed, UsageError
from genoctx.run import peer_fla, peer_transformers
from genoctx_kernels.conv import short_conv
from genoctx_kernels.conv.reference import short_conv_reference
from genoctx_kernels.kda import kda
from genoctx_kernels.loss import linear_cross_entropy
from genoctx_kernels.loss.reference import linear_cross_entropy_reference
from genoctx_kernels.mhc import mhc_mix, mhc_read
from genoctx_kernels.mhc.reference import mhc_mix_reference, mhc_read_reference
from genoctx_kernels.swiglu import clamped_swiglu
from genoctx_kernels.swiglu.reference import clamped_swiglu_reference

Op = Callable[..., Tensor]
LIMIT = 1e-3
"""Largest relative difference of outputs and gradients between two float32 forms of one op."""

HEADS, WIDTH, STREAMS, HIDDEN, VOCABULARY = 4, 32, 4, 128, 16
"""Those of the nano preset."""


@dataclass
class Timed:
    """One form of one op."""

    op: str
    form: str
    run: Op | None
    failed: str = ""
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run_kernels(tokens: int, rounds: int, say: Callable[[str], None]) -> list[list[Timed]]:
    """Per op its forms, ours first. Raises CheckFailed where a form computes something else."""
    results = []
    for op, inputs, forms in _ops(tokens):
        say(f"{op}: {', '.join(form.form for form in forms)}")
        _require_agreement(op, inputs, forms)
        for _ in range(rounds):
            for form in forms:
                if form.run is not None:
                    form.seconds.append(_time(form.run, inputs))
        results.append(forms)
    return results


def _forward_backward(run: Op, inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = run(*leaves)
    gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    return [out.detach(), *gradients]


def _time(run: Op, inputs: Sequence[Tensor]) -> float:
    begin = time.perf_counter()
    _forward_backward(run, inputs)
    return time.perf_counter() - begin


def _require_agreement(op: str, inputs: Sequence[Tensor], forms: Sequence[Timed]) -> None:
    ours = None
    for form in forms:
        if form.run is None:
            continue
        found = _forward_backward(form.run, inputs)
        ours = ours or found
        for a, b in zip(found, ours, strict=True):
            worst = float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
            if worst > LIMIT:
                raise CheckFailed(
                    f"{op}: {form.form} differs from ours by {worst:.1e}; figures of different computations "
                    "are not compared",
                    "run the tests of this op: pytest tests/kernels",
                )


def _ops(tokens: int) -> list[tuple[str, list[Tensor], list[Timed]]]:
    return [_kda(tokens), _mhc(tokens), _conv(tokens), _swiglu(tokens), _loss(tokens)]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _kda(tokens: int) -> tuple[str, list[Tensor], list[Timed]]:
    q, k, v, gate = (_draw(1, tokens, HEADS, WIDTH, seed=i) for i in range(4))
    inputs = [F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, -5 * gate.sigmoid()]
    inputs.append(_draw(1, tokens, HEADS, seed=4).sigmoid())

    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return kda(q * WIDTH**-0.5, k, v, g, beta, q.new_zeros(1, HEADS, WIDTH, WIDTH))[0]

    fla = _peer("fla naive chunk", peer_fla.kda_naive)  # first: transformers' adapter hides fla from then on
    theirs = _peer("transformers fallback", peer_transformers.kda_fallback)
    return "kda", inputs, [Timed("kda", "genoctx", ours), theirs, fla]


def _peer(name: str, load: Callable[[], Op]) -> Timed:
    try:
        return Timed("kda", name, load())
    except UsageError as error:
        return Timed("kda", name, None, failed=error.message)


def _mhc(tokens: int) -> tuple[str, list[Tensor], list[Timed]]:
    maps = 2 * STREAMS + STREAMS**2
    inputs = [
        _draw(tokens, STREAMS, HIDDEN, seed=0),
        _draw(tokens, HIDDEN, seed=1),
        0.05 * _draw(maps, STREAMS * HIDDEN, seed=2),
        _draw(maps, seed=3),
        _draw(3, seed=4),
    ]

    def site(read: Callable[..., tuple[Tensor, Tensor, Tensor]], mix: Op, *x: Tensor) -> Tensor:
        streams, y, fn, base, scale = x
        block, post, comb = read(streams, fn, base, scale, iters=20, hc_eps=1e-6, rms_eps=1e-5)
        return mix(streams, y + block, post, comb)

    return (
        "mhc site",
        inputs,
        _pair(
            "mhc site", partial(site, mhc_read, mhc_mix), partial(site, mhc_read_reference, mhc_mix_reference)
        ),
    )


def _conv(tokens: int) -> tuple[str, list[Tensor], list[Timed]]:
    inputs = [_draw(1, tokens, 3 * HIDDEN, seed=0), _draw(3 * HIDDEN, 4, seed=1)]
    tail = torch.zeros(1, 3, 3 * HIDDEN)
    return (
        "short conv",
        inputs,
        _pair(
            "short conv",
            lambda x, w: short_conv(x, w, tail)[0],
            lambda x, w: short_conv_reference(x, w, tail)[0],
        ),
    )


def _swiglu(tokens: int) -> tuple[str, list[Tensor], list[Timed]]:
    inputs = [6 * _draw(tokens, 2 * HIDDEN, seed=0)]
    return (
        "swiglu",
        inputs,
        _pair("swiglu", lambda x: clamped_swiglu(x, 10.0), lambda x: clamped_swiglu_reference(x, 10.0)),
    )


def _loss(tokens: int) -> tuple[str, list[Tensor], list[Timed]]:
    inputs = [_draw(tokens, HIDDEN, seed=0), _draw(VOCABULARY, HIDDEN, seed=1)]
    targets = torch.randint(0, 4, (tokens,), generator=torch.Generator().manual_seed(2))
    return (
        "loss",
        inputs,
        _pair(
            "loss",
            lambda h, w: linear_cross_entropy(h, w, targets),
            lambda h, w: linear_cross_entropy_reference(h, w, targets),
        ),
    )


def _pair(op: str, ours: Op, reference: Op) -> list[Timed]:
    return [Timed(op, "genoctx", ours), Timed(op, "reference", reference)]
