"""AdamW on float32 masters, linear warm-up and cosine decay, clipping by the global norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from genoctx.engine.bytes import MOMENTS, PARAMETERS
from genoctx.engine.homes import Homes
from genoctx.engine.pinned import Arrival
from genoctx_kernels.numerics import accumulator


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


_AVERAGES = ("exp_avg", "exp_avg_sq")


def _decays(name: str, parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and "conv1d" not in name and "hc_" not in name and "_ape" not in name


def _layer(name: str) -> str:
    """``layers.3`` of ``layers.3.mlp.gate.weight``; the name itself outside of layers."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else name


class Optimizer:
    """AdamW over the trainable parameters of a model, addressed by name, one layer after the other.

    Parameters in bfloat16 step on float32 masters and are rounded from them; gradients are always
    summed in float32 (float64 for float64). Masters and gradient sums have the home ``parameters``,
    moments the home ``moments``. The step is taken where the masters are: beside a GPU on the host when they
    are there; moments that are there alone come to the GPU and go back, layer by layer.
    """

    def __init__(self, model: nn.Module, settings: AdamWSettings, homes: Homes | None = None) -> None:
        self.settings = settings
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.homes = homes or Homes.on(next(model.parameters()).device)
        size = sum(p.numel() * accumulator(p.dtype).itemsize for p in self.parameters.values())
        self.homes.require({PARAMETERS: 2 * size, MOMENTS: 2 * size})
        self.masters = {n: self._master(p) for n, p in self.parameters.items()}
        away = self.homes[PARAMETERS].moves
        self._sums = {n: self._zeros(PARAMETERS, m) for n, m in self.masters.items()} if away else {}
        """Memory of gradient sums that have a home, kept from step to step."""
        self._averages: dict[Tensor, dict[str, Tensor]] = {}
        """Memory of both moments by master."""
        if self.homes[MOMENTS].moves:  # a disk that is full is told of now, not by the first step
            for master in self.masters.values():
                self._pair(master)
        self.adamw = [self._stepper(list(names)) for _, names in groupby(self.masters, key=_layer)]
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._collector(n))
            for n, p in self.parameters.items()
            if self.masters[n] is not p
        ]

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        """What is stepped on: the parameter itself, or a tensor in the home of masters."""
        home, wide = self.homes[PARAMETERS], accumulator(parameter.dtype)
        if not home.moves and wide == parameter.dtype:
            return parameter
        if not home.moves:
            return nn.Parameter(parameter.detach().to(wide))
        place = home.allocate(tuple(parameter.shape), wide)
        place.copy_(parameter.detach())
        if place.device == parameter.device and wide == parameter.dtype:
            parameter.data = place  # the weights themselves live there
        return nn.Parameter(place)

    def _zeros(self, category: str, master: Tensor) -> Tensor:
        return self.homes[category].allocate(tuple(master.shape), master.dtype)

    def _pair(self, master: Tensor) -> dict[str, Tensor]:
        """Zeroed memory of AdamW's two averages, once for every master."""
        if master not in self._averages:
            self._averages[master] = {key: self._zeros(MOMENTS, master) for key in _AVERAGES}
        return self._averages[master]

    def _stepper(self, names: list[str]) -> torch.optim.AdamW:
        decayed = [self.masters[n] for n in names if _decays(n, self.masters[n])]
        others = [self.masters[n] for n in names if not _decays(n, self.masters[n])]
        weight_decay = self.settings.weight_decay
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.0, betas=self.settings.betas, eps=self.settings.eps)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.parameters.values())).device

    def _collector(self, name: str) -> Callable[[Tensor], None]:
        def collect(parameter: Tensor) -> None:
            """Move a gradient into its sum at once."""
            assert parameter.grad is not None
            self.add_gradient(name, parameter.grad)
            parameter.grad = None

        return collect

    @torch.no_grad()
    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """Add to the gradient sum of ``name``; the first one is taken as it is, bit by bit."""
        master, home = self.masters[name], self.homes[PARAMETERS]
        if master.grad is not None:
            master.grad += gradient.to(master.device)
        elif home.moves:
            master.grad = self._sums[name].copy_(gradient)
        else:
            master.grad = gradient.to(master.dtype, copy=True)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Every gradient sum there is."""
        for name, master in self.masters.items():
            if master.grad is not None:
                yield name, master.grad

    def zero_grad(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.grad = None
            self.masters[name].grad = None

    def grad_norm(self) -> float:
        """Global L2 norm of all gradients, squares summed in float64."""
        total = torch.zeros((), dtype=torch.float64)
        for _, gradient in self.gradients():
            total += gradient.square().sum(dtype=torch.float64).cpu()
        return math.sqrt(total.item())

    def largest(self, values: list[float]) -> list[float]:
        """The largest of each over all who hold parts of the parameters: here, one process."""
        return values

    @torch.no_grad()
    def step(self, rate: float, norm: float) -> None:
        """Clip to ``clip_norm`` and take one AdamW step at learning rate ``rate``, layer by layer."""
        clip = self.settings.clip_norm
        scale = clip / norm if clip and norm > clip else None
        for adamw in self.adamw:
            self._open_moments(adamw)
        coming = self._send_for(self.adamw[0]) if self.adamw else None
        for adamw, following in zip(self.adamw, (*self.adamw[1:], None), strict=True):
            assert coming is not None
            places, moments = self._moments(adamw), coming()
            coming = self._send_for(following) if following is not None else None
            self._set_moments(adamw, moments)
            self._step(adamw, rate, scale)
            for place, moment in zip(places, moments, strict=True):
                self.homes[MOMENTS].store(place, moment)
            self._set_moments(adamw, places)
            self.homes[MOMENTS].behind(places)
        self.homes[MOMENTS].settle()
        for name, parameter in self.parameters.items():
            if self.masters[name].data_ptr() != parameter.data_ptr():
                parameter.copy_(self.masters[name], non_blocking=True)
        self.zero_grad()

    def _open_moments(self, adamw: torch.optim.AdamW) -> None:
        """Zeroed averages, in their home, for every gradient that has none yet."""
        for master in (m for group in adamw.param_groups for m in group["params"]):
            if master.grad is not None and not adamw.state[master]:
                adamw.state[master].update({"step": torch.tensor(0.0), **self._pair(master)})

    def _step(self, adamw: torch.optim.AdamW, rate: float, scale: float | None) -> None:
        """One layer's part of a step."""
        for group in adamw.param_groups:
            group["lr"] = rate
            for master in group["params"]:
                if master.grad is not None and scale is not None:
                    master.grad *= scale
        adamw.step()
        self.homes[PARAMETERS].behind(
            m.grad for g in adamw.param_groups for m in g["params"] if m.grad is not None
        )

    def _moments(self, adamw: torch.optim.AdamW) -> list[Tensor]:
        return [state[key] for state in adamw.state.values() for key in _AVERAGES]

    def _set_moments(self, adamw: torch.optim.AdamW, moments: list[Tensor]) -> None:
        rest = iter(moments)
        for state in adamw.state.values():
            state.update({key: next(rest) for key in _AVERAGES})

    def _send_for(self, adamw: torch.optim.AdamW) -> Arrival:
        """Start to bring a layer's moments to where its masters are."""
        places, home = self._moments(adamw), self.homes[MOMENTS]
        if home.apart and not self.homes[PARAMETERS].apart:
            return home.send_for(places)
        home.ahead(places)
        return lambda: places

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything a resume needs, as named tensors."""
        moments = self._states()
        for name, master in self.masters.items():
            if master.dtype != self.parameters[name].dtype:
                yield f"master.{name}", master.detach()
            for key, value in moments.get(master, {}).items():
                yield f"{key}.{name}", value

    def _states(self) -> dict[Tensor, dict[str, Tensor]]:
        return {master: state for adamw in self.adamw for master, state in adamw.state.items()}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of :meth:`state`. Raises KeyError or RuntimeError naming a moment that does not belong here.

        Masters that are no state of their own are those of the model's weights as they are now.
        """
        owners = {m: adamw for adamw in self.adamw for g in adamw.param_groups for m in g["params"]}
        for name, master in self.masters.items():
            if master.data_ptr() != self.parameters[name].data_ptr():
                master.copy_(self.parameters[name])
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            master = self.masters[name]
            if value.ndim and value.shape != master.shape:
                raise RuntimeError(f"{key} is {list(value.shape)}, the model needs {list(master.shape)}")
            if kind == "master":
                master.copy_(value)
            elif value.ndim:
                owners[master].state[master][kind] = self._pair(master)[kind].copy_(value)
            else:
                owners[master].state[master][kind] = value.clone()  # AdamW counts its steps on the host
