"""Names of a hub checkpoint (spec section 4.2), and what each of them is to the text model.

Our parameters carry the hub's names without the prefix, except that the experts of a layer are grouped
into two tensors. Beside them a checkpoint may hold a multi-token-prediction layer, a vision tower, and a
``NAME_scale_inv`` for every tensor that is stored in blocks of float8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from genoctx.model.adapter import ADAPTER_PARTS
from genoctx.model.hybrid import Hybrid

PREFIX = "model.language_model."
SCALE = "_scale_inv"
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_VISION = re.compile(r"(model\.)?(visual|vision_tower)\.")
_LAYER = re.compile(r"(.*?)\blayers\.(\d+)\.(.+)")
_MTP_MARK = "eh_proj.weight"


def hub_name(name: str) -> str:
    """Hub name of one of our ungrouped parameters."""
    return name if name == _HEAD else PREFIX + name


def hub_parts(name: str, parameter: Tensor, first: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(hub name, view of the parameter) pairs that one of our parameters is made of.

    ``first``: the number of the first expert in ``parameter``, which may hold some of them only.
    """
    if name.endswith("mlp.experts.gate_up_proj"):
        stem, inner = hub_name(name.removesuffix("gate_up_proj")), parameter.shape[1] // 2
        for e, expert in enumerate(parameter, first):
            yield f"{stem}{e}.gate_proj.weight", expert[:inner]
            yield f"{stem}{e}.up_proj.weight", expert[inner:]
    elif name.endswith("mlp.experts.down_proj"):
        stem = hub_name(name.removesuffix("down_proj"))
        for e, expert in enumerate(parameter, first):
            yield f"{stem}{e}.down_proj.weight", expert
    else:
        yield hub_name(name), parameter


def hub_tensors(model: Hybrid) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model under its hub name, as views; adapters are no part of it."""
    for name, parameter in model.named_parameters():
        if not name.endswith(ADAPTER_PARTS):
            yield from hub_parts(name, parameter.detach())


def layer_of(name: str) -> int | None:
    """Index of the layer that a tensor of a checkpoint belongs to, if any."""
    match = _LAYER.fullmatch(name)
    return int(match[2]) if match and not _VISION.match(name) else None


def spans(numbers: Iterable[int]) -> str:
    """``[3, 4, 5, 9]`` as ``3-5, 9``."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


class StoredNames:
    """The names one checkpoint uses: its prefix, its layers' numbers, and what is not the text model.

    ``layers[j]`` is the stored number of our layer j; without it they are the same.
    """

    def __init__(self, names: Iterable[str], layers: Sequence[int] | None = None) -> None:
        self.names = frozenset(names)
        self.prefix = _prefix(self.names)
        marked = (layer_of(name) for name in self.names if name.endswith(_MTP_MARK))
        self._mtp = {layer for layer in marked if layer is not None}
        self._layers = layers

    def stored(self, name: str) -> str:
        """The name under which this checkpoint keeps our tensor of the hub name ``name``."""
        match = _LAYER.fullmatch(name)
        if match and self._layers is not None:
            name = f"{match[1]}layers.{self._layers[int(match[2])]}.{match[3]}"
        return self.prefix + name.removeprefix(PREFIX) if name.startswith(PREFIX) else name

    def hub(self, stored: str) -> str:
        """The hub name of a stored tensor, its layer's number unchanged."""
        inside = stored.startswith(self.prefix) and stored != _HEAD
        return PREFIX + stored.removeprefix(self.prefix) if inside else stored

    def scale(self, name: str) -> str | None:
        """The companion that holds the block scales of a stored tensor, where there is one."""
        return name + SCALE if name + SCALE in self.names else None

    def is_scale(self, name: str) -> bool:
        return name.endswith(SCALE) and name.removesuffix(SCALE) in self.names

    def is_foreign(self, name: str) -> bool:
        """Whether the tensor belongs to the multi-token-prediction layer or to the vision tower."""
        return bool(_VISION.match(name)) or layer_of(name) in self._mtp


def _prefix(names: Iterable[str]) -> str:
    """What stands before the text model's names: ``model.language_model.`` but in text-only checkpoints."""
    for name in names:
        if name.endswith(_EMBEDDING) and layer_of(name) is None and not _VISION.match(name):
            return name.removesuffix(_EMBEDDING)
    return PREFIX
