"""AdamW on float32 masters, linear warm-up and cosine decay, clipping by the global norm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Schedule:
    """Learning rate of step 1, 2, ..., steps: linear warm-up, then cosine down to peak * min_ratio."""

    peak: float
    steps: int
    warmup: int
    min_ratio: float

    def rate(self, step: int) -> float:
        if step <= self.warmup:
            return self.peak * step / self.warmup
        span = max(1, self.steps - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - self.warmup) / span)))
        return self.peak * (self.min_ratio + (1 - self.min_ratio) * cosine)


@dataclass(frozen=True)
class AdamWSettings:
    """Decoupled weight decay for matrices only; norms, biases, gates and mHC maps never decay."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 does not clip."""


def _decays(name: str, parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and "conv1d" not in name and "hc_" not in name and "_ape" not in name


class Optimizer:
    """AdamW over the trainable parameters of a model, addressed by name.

    Parameters in bfloat16 step on float32 masters and are rounded from them; gradients are always
    summed in float32 (float64 for float64): see :meth:`collect`.
    """

    def __init__(self, model: nn.Module, settings: AdamWSettings) -> None:
        self.settings = settings
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            n: p if p.dtype in (torch.float32, torch.float64) else nn.Parameter(p.detach().float())
            for n, p in self.parameters.items()
        }
        groups = [
            {
                "params": [m for n, m in self.masters.items() if _decays(n, m)],
                "weight_decay": settings.weight_decay,
            },
            {"params": [m for n, m in self.masters.items() if not _decays(n, m)], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.eps)
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._collector(n))
            for n, p in self.parameters.items()
            if self.masters[n] is not p
        ]

    def _collector(self, name: str):  # type: ignore[no-untyped-def]
        master = self.masters[name]

        def collect(parameter: Tensor) -> None:
            """Move a low-precision gradient into the float32 sum at once."""
            assert parameter.grad is not None
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            master.grad += parameter.grad
            parameter.grad = None

        return collect

    def zero_grad(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.grad = None
            self.masters[name].grad = None

    def grad_norm(self) -> float:
        """Global L2 norm of all gradients, squares summed in float64."""
        total = torch.zeros((), dtype=torch.float64)
        for master in self.masters.values():
            if master.grad is not None:
                total += master.grad.square().sum(dtype=torch.float64).cpu()
        return math.sqrt(total.item())

    @torch.no_grad()
    def step(self, rate: float, norm: float) -> None:
        """Clip to ``clip_norm`` and take one AdamW step at learning rate ``rate``."""
        clip = self.settings.clip_norm
        if clip and norm > clip:
            for master in self.masters.values():
                if master.grad is not None:
                    master.grad *= clip / norm
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])
        self.zero_grad()

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything a resume needs, as named tensors."""
        for name, master in self.masters.items():
            if master is not self.parameters[name]:
                yield f"master.{name}", master.detach()
            for key, value in self.adamw.state.get(master, {}).items():
                yield f"{key}.{name}", value

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of :meth:`state`. Raises KeyError or RuntimeError naming a moment that does not belong here."""
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            master = self.masters[name]
            if value.ndim and value.shape != master.shape:
                raise RuntimeError(f"{key} is {list(value.shape)}, the model needs {list(master.shape)}")
            if kind == "master":
                master.copy_(value)
            else:
                # AdamW counts its steps on the host
                home = master.device if value.ndim else value.device
                self.adamw.state[master][kind] = value.to(home, copy=True)
