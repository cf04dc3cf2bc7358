"""``genoctx bench profile``: what this machine can do, and where the time of one streamed step goes.

Rates first: products of matrices of several shapes and a copy, best of several. Then one step to count the
floating-point operations of all matrix products, forward and backward, and one in torch's profiler for the time of
each kind of op (not both at once: noting shapes doubles the time). An op counts where it was called from: a product
inside KDA is KDA's.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, Coefficients, Denominators, bounds
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.stream import train_window
from genoctx.model import dsa, moe
from genoctx.model.hybrid import build

SHAPES = ((2048, 2048, 2048), (2048, 128, 128), (2048, 512, 128), (2048, 32, 2048))
"""Rows, inner width and columns: a large product, nano's projections, its mHC maps and its index scores."""

PRODUCTS = "products of matrices"
_KINDS = (
    ("KDA", ("_Kda",)),
    ("short convolution", ("_ShortConv",)),
    ("hyper-connections", ("_Sinkhorn", "_Read", "_Mix")),
    ("indexer: scores and top-k", ("select_pools",)),
    ("sparse attention", ("_SparseAttention",)),
    ("experts", ("routed_experts", "_RoutedExperts", "_ClampedSwiglu")),
    ("loss", ("_LinearCrossEntropy", "_SmallCrossEntropy")),
    ("optimizer", ("Optimizer.step",)),
    (
        PRODUCTS,
        ("aten::mm", "aten::bmm", "aten::addmm", "aten::linear", "aten::matmul", "_Linear", "mkldnn::"),
    ),
)
REST = "norms, gates, copies, indexing"
_PLACES = (
    ("KDA", "genoctx_kernels/kda/"),
    ("hyper-connections", "genoctx_kernels/mhc/"),
    ("indexer: scores and top-k", "genoctx_kernels/dsa/indexer.py"),
    ("sparse attention", "genoctx_kernels/dsa/"),
    ("experts", "genoctx_kernels/moe/"),
    ("loss", "genoctx_kernels/loss/"),
)
"""Where the code of each kind that makes products lies."""
_FACTORS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::mv": (0, 1),
    "mkldnn::_linear_pointwise": (0, 1),
}
"""Which inputs of a product are its factors; all other products of torch end in one of these."""


@dataclass(frozen=True)
class Profile:
    """One step of one window."""

    tokens: int
    seconds: float
    """Without the profiler."""
    flops: dict[str, int]
    """Of the matrix products in each kind of op."""
    shares: dict[str, float]
    """Part of the profiled time of each kind of op; they add up to 1."""


def measure_rates(rounds: int = 7) -> tuple[dict[str, float], float]:
    """FLOP per second of each of SHAPES in float32, and bytes per second read and written by a copy."""
    rates = {}
    for rows, inner, columns in SHAPES:
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        out = torch.empty(rows, columns)
        repeats = max(1, 2**30 // (rows * inner * columns))

        def product(
            a: torch.Tensor = a, b: torch.Tensor = b, out: torch.Tensor = out, n: int = repeats
        ) -> None:
            for _ in range(n):
                torch.mm(a, b, out=out)

        flops = 2 * rows * inner * columns * repeats
        rates[f"{rows} x {inner} x {columns}"] = flops / _best(product, rounds)
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    return rates, 2 * source.nbytes / _best(lambda: target.copy_(source), rounds)


def _best(run: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def profile_step(preset: str, context: int, chunk: int) -> Profile:
    """One training step (both sweeps and AdamW) of a freshly drawn ``preset`` on random bases."""
    model = build(preset_model(preset), seed=0)
    optimizer = Optimizer(model, AdamWSettings())
    ids = torch.randint(0, 4, (1, context), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, torch.roll(ids, -1, 1), ("random",))
    per = Denominators.of([batch], model.config.index_kpool)

    def step() -> None:
        train_window(model, batch, bounds(context, chunk), Coefficients(), per)
        with record_function("Optimizer.step"):
            optimizer.step(0.0, optimizer.grad_norm())

    step()
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    with _Products() as products:
        step()
    with _named(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        step()
    shares = _shares(profiler.events())
    return Profile(context, seconds, {kind: products.flops[kind] for kind in shares}, shares)


class _Products(TorchDispatchMode):
    """Operations of the matrix products by the kind of op whose code makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in _FACTORS:
            shapes = [getattr(x, "shape", ()) for x in args]
            self.flops[_calling_kind()] += product_flops(name, shapes)
        return func(*args, **(kwargs or {}))


def _calling_kind() -> str:
    """The kind whose folder the innermost of the calling functions is in; a product of its own else."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        for kind, place in _PLACES:
            if place in frame.f_code.co_filename:
                return kind
        frame = frame.f_back
    return PRODUCTS


@contextmanager
def _named() -> Iterator[None]:
    """Give the two ops that are no autograd function of their own a name in the profile."""
    places: list[tuple[Any, str]] = [(dsa, "select_pools"), (moe, "routed_experts")]
    originals = [getattr(module, name) for module, name in places]

    def wrapped(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with record_function(name):
                return op(*args, **kwargs)

        return run

    try:
        for (module, name), op in zip(places, originals, strict=True):
            setattr(module, name, wrapped(name, op))
        yield
    finally:
        for (module, name), op in zip(places, originals, strict=True):
            setattr(module, name, op)


def _kind(name: str) -> str:
    """The kind of op an event belongs to; empty where its parts decide."""
    return next((kind for kind, starts in _KINDS if name.startswith(starts)), "")


def product_flops(name: str, shapes: Sequence[Sequence[int]]) -> int:
    """Multiplications and additions of one op, 0 for all that is no product: twice rows x inner width x columns."""
    if name not in _FACTORS:
        return 0
    left, right = (shapes[at] for at in _FACTORS[name])
    columns = right[0] if name.startswith("mkldnn::") else (*right, 1)[len(left) - 1]  # oneDNN: [N, K]
    return 2 * math.prod(left) * columns


def _shares(events: Any) -> dict[str, float]:
    """Time by kind, largest first: an event of a kind takes all that happens in it; others only their own time."""
    spent: dict[str, float] = defaultdict(float)

    def visit(event: Any) -> None:
        if kind := _kind(event.name):
            spent[kind] += event.cpu_time_total
            return
        spent[REST] += event.self_cpu_time_total
        for child in event.cpu_children:
            visit(child)

    for event in events:
        if event.cpu_parent is None:
            visit(event)
    total = sum(spent.values())
    return {kind: spent[kind] / total for kind in sorted(spent, key=spent.__getitem__, reverse=True)}
