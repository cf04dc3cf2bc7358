"""Does the first step move what it says it trains? The largest gradient of every tensor is looked at.

A run that trains nothing looks like any other until its report: adapters that are not in the graph, a rate
that is lost in rounding, parameters that were frozen by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from genoctx.engine.optimizer import Optimizer
from genoctx.errors import GenoctxError

SHOWN = 5


class Movement:
    """What one optimizer step leaves where it was: ``before`` it, with its gradients, and ``after``."""

    def __init__(self) -> None:
        self.still: dict[str, str] = {}
        """Trained tensors that did not move, and why."""
        self._watched: dict[str, tuple[int, float]] = {}
        self.trained = 0

    @torch.no_grad()
    def before(self, optimizer: Optimizer) -> None:
        """Note where each tensor has its largest gradient, and its value there."""
        self.trained = len(optimizer.masters)
        for name, master in optimizer.masters.items():
            if master.grad is None:
                self.still[name] = "it has no part in the loss"
                continue
            flat = master.grad.flatten()
            place = int(flat.abs().argmax())
            if flat[place] == 0:
                self.still[name] = "its gradient is zero"
            else:
                self._watched[name] = (place, master.flatten()[place].item())

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> None:
        """Compare; the watched element of a tensor that moves at all is the one that moves most."""
        for name, (place, value) in self._watched.items():
            if optimizer.masters[name].flatten()[place].item() == value:
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
