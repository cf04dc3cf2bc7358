"""Which parts of a model are trained: adapters beside frozen weights, or some of the weights themselves.

The indexer is no target: its inputs are detached, so only the indexer KL reaches it (spec section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from genoctx.errors import ConfigError
from genoctx.model.adapter import AdaptedLinear, Lora, LowRank
from genoctx.model.hybrid import Hybrid
from genoctx.model.linear import Linear
from genoctx.model.moe import Experts, Router
from genoctx.model.select import select

INDEXER = ".indexer."
_NOTHING = "no linear of the model (the indexer is never a target)"


class Target(NamedTuple):
    """A linear that can have an adapter, its owner, and its weight [..., outputs, inputs]."""

    name: str
    owner: nn.Module
    weight: Tensor


def linears(model: Hybrid) -> Iterator[Target]:
    """Everything an adapter can be added to, by module name; experts by the hub's name of a projection."""
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            for projection, weight in module.adaptable().items():
                yield Target(f"{name}.{projection}", module, weight)
        elif isinstance(module, Router):
            yield Target(name, module, module.weight)
        elif isinstance(module, nn.Linear) and INDEXER not in name:
            yield Target(name, model.get_submodule(name.rpartition(".")[0]), module.weight)


def add_adapters(model: Hybrid, lora: Lora, seed: int) -> None:
    """Freeze the model (an indexer that the KL trains excepted) and put adapters beside its targets.

    A is drawn from ``seed``, B is zero: the model computes what it did. Base weights are loaded before.
    """
    targets = {target.name: target for target in linears(model)}
    chosen = select(targets, lora.targets, "lora.targets", _NOTHING)
    wanted = {name for names in chosen.values() for name in names}
    trained = [p for name, p in model.named_parameters() if INDEXER in name and p.requires_grad]
    model.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    for name in (name for name in targets if name in wanted):
        adapter = LowRank(targets[name].weight, lora.rank, lora.scale)
        if adapter.lora_A.device.type != "meta":
            adapter.draw(generator)
        _attach(targets[name], adapter)
    model.lora = lora


def _attach(target: Target, adapter: LowRank) -> None:
    last = target.name.rpartition(".")[2]
    if isinstance(target.owner, Experts):
        target.owner.adapters[last] = adapter
    elif isinstance(target.owner, Router):
        target.owner.adapter = adapter
    else:
        linear = getattr(target.owner, last)
        setattr(target.owner, last, AdaptedLinear.around(linear, adapter))


def adapters(model: Hybrid) -> Iterator[tuple[str, LowRank]]:
    """The adapters of a model by the name of what they adapt, as in ``linears``."""
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            yield name.removesuffix(".adapter").replace(".adapters.", "."), module


def choose_trainable(model: Hybrid, trainable: Sequence[str], freeze: Sequence[str]) -> dict[str, list[str]]:
    """Set ``requires_grad`` by name; returns the parameters of each pattern of ``trainable``.

    Without adapters ``trainable`` names what is trained (none: everything), with adapters what is trained
    beside them; ``freeze`` takes away. ConfigError where a pattern matches nothing or nothing is left.
    """
    parameters = dict(model.named_parameters())
    able = {
        name
        for name, p in parameters.items()
        if p.requires_grad or not (INDEXER in name or name.endswith("e_score_correction_bias"))
    }
    asked = select(parameters, trainable, "train.trainable", "no parameter")
    for pattern, names in asked.items():
        if not able.intersection(names):
            raise ConfigError(
                f"train.trainable: {pattern!r} matches only what has no gradient: {names[0]}",
                "the indexer is trained by loss.indexer_kl > 0; a router's correction bias is not trained",
            )
    if trainable:
        listed = {name for names in asked.values() for name in names} & able
        kept = {n for n, p in parameters.items() if p.requires_grad} if model.lora else set()
        for name, p in parameters.items():
            p.requires_grad_(name in listed | kept)
    frozen = select(parameters, freeze, "train.freeze", "no parameter")
    for name in (name for names in frozen.values() for name in names):
        parameters[name].requires_grad_(False)
    _refuse_nothing(model)
    return {pattern: [n for n in names if parameters[n].requires_grad] for pattern, names in asked.items()}


def _refuse_nothing(model: Hybrid) -> None:
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise ConfigError(
            "trainable = 0: every parameter is frozen", "see train.trainable, train.freeze and lora.targets"
        )
    with_kl = [layer for layer in model.layers if getattr(layer.self_attn, "kl_mode", "off") != "off"]
    if with_kl and not any(INDEXER in name for name in trained):
        raise ConfigError(
            "loss.indexer_kl > 0, but the indexer is frozen",
            "add 'indexer' to train.trainable, or set loss.indexer_kl = 0.0",
        )


@torch.no_grad()
def merge(model: Hybrid) -> None:
    """Add every adapter to its weight and remove it; the model computes the same without it."""
    weights = {target.name: target for target in linears(model)}
    for name, adapter in list(adapters(model)):
        target = weights[name]
        target.weight.copy_(target.weight.to(adapter.lora_A.dtype) + adapter.delta())
        last = name.rpartition(".")[2]
        if isinstance(target.owner, Experts):
            del target.owner.adapters[last]
        elif isinstance(target.owner, Router):
            target.owner.adapter = None
        else:
            setattr(target.owner, last, _plain(target.weight))
    model.lora = None


def _plain(weight: Tensor) -> nn.Linear:
    with torch.device("meta"):
        linear = Linear(weight.shape[1], weight.shape[0])
    assert isinstance(weight, nn.Parameter)
    linear.weight = weight
    return linear
