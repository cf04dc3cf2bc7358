"""Homes beside a GPU: what comes back from them is what went there, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu_cases import DEVICE
from torch import Tensor

from genoctx.config import preset_model
from genoctx.engine.batch import Batch
from genoctx.engine.homes import Homes, Where
from genoctx.engine.optimizer import AdamWSettings, Optimizer
from genoctx.engine.stream import forward_sweep
from genoctx.engine.tape import Tape
from genoctx.model.hybrid import Hybrid, build

LIMITS = [(0, 63), (63, 64), (64, 160), (160, 250)]
KINDS: list[Where] = ["host", "file"]


def nano() -> Hybrid:
    return build(preset_model("nano"), device=DEVICE, seed=0)


def homes(categories: tuple[str, ...], kind: Where, folder: Path) -> Homes:
    return Homes.of(dict.fromkeys(categories, kind), torch.device(DEVICE), folder)


def stepped(made: Homes | None) -> dict[str, Tensor]:
    """Weights and moments after three steps on gradients that are the same every time, on the host."""
    model = nano()
    optimizer = Optimizer(model, AdamWSettings(), made)
    for step in range(3):
        for number, (name, p) in enumerate(optimizer.parameters.items()):
            generator = torch.Generator().manual_seed(100 * step + number)
            optimizer.add_gradient(name, torch.randn(p.shape, generator=generator).to(p.device, p.dtype))
        optimizer.step(1e-2, optimizer.grad_norm())
    return {n: t.detach().cpu() for n, t in (*model.named_parameters(), *optimizer.state())}


@pytest.mark.parametrize("kind", KINDS)
def test_moments_go_and_come_back(kind: Where, tmp_path: Path) -> None:
    plain, moved = stepped(None), stepped(homes(("moments",), kind, tmp_path))
    assert plain.keys() == moved.keys()
    assert all(torch.equal(moved[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_the_host_is_one_on_the_device(kind: Where, tmp_path: Path) -> None:
    """But for the rounding of two processors."""
    plain, moved = stepped(None), stepped(homes(("moments", "parameters"), kind, tmp_path))
    for name, tensor in plain.items():
        torch.testing.assert_close(moved[name], tensor, rtol=1e-5, atol=1e-7, msg=name)


def taken(made: Homes | None) -> list[Tensor]:
    """What enters every chunk of a window, and what was chosen in it, as the backward sweep gets them."""
    model = nano()
    ids = torch.randint(0, 4, (1, LIMITS[-1][1]), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, torch.roll(ids, -1, 1), ("random",))
    tape = forward_sweep(model, batch, LIMITS, tape=Tape.open(model, 1, LIMITS, made))
    found: list[Tensor] = []
    for _ in LIMITS:
        carry, choices = tape.take()
        found += [t for layer in carry for t in layer.tensors()]
        for c in choices or ():
            found += [] if c is None else [t for t in (*(c.pools or ()), c.experts) if t is not None]
        tape.left -= 1
    assert {t.device.type for t in found} == {torch.device(DEVICE).type}
    return [t.cpu() for t in found]


@pytest.mark.parametrize("kind", KINDS)
def test_carries_and_ids_come_back_chunk_by_chunk(kind: Where, tmp_path: Path) -> None:
    plain, moved = taken(None), taken(homes(("carries", "ids"), kind, tmp_path))
    assert len(plain) == len(moved) > 50
    assert all(torch.equal(a, b) for a, b in zip(plain, moved, strict=True))
