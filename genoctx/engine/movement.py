"""Does the first step move what it says it trains? The largest gradient of every tensor is looked at.

A run that trains nothing looks like any other until its report: adapters that are not in the graph, a rate
that is lost in rounding, parameters that were frozen by mistake.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from genoctx.engine.optimizer import Optimizer
from genoctx.errors import GenoctxError

SHOWN = 5


class Movement:
    """What one optimizer step leaves where it was: ``before`` it, with its gradients, and ``after``."""

    def __init__(self) -> None:
        self.still: dict[str, str] = {}
        """Trained tensors that did not move, and why."""
        self._watched: dict[str, tuple[int | None, float]] = {}
        """Place and value before the step; no place where another rank watches."""
        self.trained = 0

    @torch.no_grad()
    def before(self, optimizer: Optimizer) -> None:
        """Note where each tensor has its largest gradient, and its value there.

        Where ranks hold parts of a tensor, those watch whose part has the largest of all.
        """
        self.trained = len(optimizer.masters)
        own = {name: _largest(master.grad) for name, master in optimizer.masters.items()}
        all_ranks = optimizer.largest([size for size, _ in own.values()])
        for (name, (size, place)), largest in zip(own.items(), all_ranks, strict=True):
            if largest < 0:
                self.still[name] = "it has no part in the loss"
            elif largest == 0:
                self.still[name] = "its gradient is zero"
            else:
                here = size == largest
                value = optimizer.masters[name].flatten()[place].item() if here else -math.inf
                self._watched[name] = (place if here else None, value)

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """Compare; the watched element of a tensor that moves at all is the one that moves most."""
        moved = [
            float(place is not None and optimizer.masters[name].flatten()[place].item() != value)
            for name, (place, value) in self._watched.items()
        ]
        found = optimizer.largest([*moved, *(value for _, value in self._watched.values())])
        flags, values = found[: len(moved)], found[len(moved) :]
        for name, flag, value in zip(self._watched, flags, values, strict=True):
            if not flag:
                self.still[name] = f"the step is lost beside {value:.3g} in {optimizer.masters[name].dtype}"

    def refuse(self, asked: Mapping[str, Sequence[str]]) -> None:
        """GenoctxError naming adapters that stand still, patterns of ``asked`` of which nothing moves, or all.

        The A of an adapter has a gradient only once its B has left zero: B stands for both.
        """
        lost = [name for name in self.still if name.endswith(".lora_B")]
        for names in asked.values():
            if names and all(name in self.still for name in names):
                lost += [name for name in names if name not in lost]
        if not lost and self.trained and len(self.still) == self.trained:
            lost = list(self.still)
        if lost:
            raise GenoctxError(
                f"step 1 did not move {len(lost):,} tensor(s) that it says it trains: {self._shown(lost)}",
                "raise optim.lr, or take them out of lora.targets and train.trainable; nothing was saved",
            )

    def describe(self) -> str:
        """The tensors that did not move, for a warning; empty where all that can move did."""
        names = [name for name in self.still if not name.endswith(".lora_A")]
        return f"step 1 did not move {self._shown(names)}" if names else ""

    def _shown(self, names: Sequence[str]) -> str:
        shown = ", ".join(f"{name} ({self.still[name]})" for name in names[:SHOWN])
        return shown + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")


def _largest(gradient: Tensor | None) -> tuple[float, int]:
    """The largest absolute value and its place; -1 where there is none."""
    if gradient is None or not gradient.numel():
        return -1.0, 0
    flat = gradient.flatten().abs()
    place = int(flat.argmax())
    return flat[place].item(), place
