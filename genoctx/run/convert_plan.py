"""What a converted checkpoint holds: one entry a tensor, with where its bytes come from.

``hf``: everything the base checkpoint holds, tensor by tensor in the dtype it has there; what the source
has not changed keeps its bytes. ``genoctx``: the text model alone, dequantised, under the hub's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genoctx.errors import InputError
from genoctx.model.config import ModelConfig
from genoctx.model.fp8 import Block, quantise_fp8
from genoctx.model.hub_config import float8_block, from_hub, read_hub_config, read_hub_json
from genoctx.model.hub_files import WeightFiles
from genoctx.model.hub_fit import CONFIG_FILE, Fit, fit, slice_config
from genoctx.model.hub_header import DTYPES
from genoctx.model.hub_names import SCALE
from genoctx.model.hub_write import Entry, Piece, as_bytes, spelling
from genoctx.model.hybrid import FP32_HELD, build
from genoctx.model.shard_files import open_files
from genoctx.model.weights import read_into

Delta = Callable[[str], Tensor | None]
"""What a merged adapter adds to the tensor of a hub name, or puts in its place, in its shape; None: nothing."""

COPIED, CAST, DEQUANTISED, CHANGED = "copied byte for byte", "cast", "dequantised", "changed"
REQUANTISED = "changed and rounded to float8 again"


def unchanged(name: str) -> Tensor | None:
    """The delta of no adapter."""
    return None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory, opened and compared with the model its config describes."""

    directory: Path
    raw: dict[str, Any]
    """Its ``config.json``."""
    config: ModelConfig
    """Of the chosen layers."""
    block: Block
    files: WeightFiles
    fit: Fit

    @classmethod
    def open(cls, directory: Path, stack: ExitStack, layers: Sequence[int] | None = None) -> Checkpoint:
        """Raises ConfigError or InputError where there is nothing to open; all else is in ``fit.problems``."""
        config, raw = read_hub_config(directory / CONFIG_FILE), read_hub_json(directory / CONFIG_FILE)
        if layers is not None:
            config = slice_config(config, layers)
        files = stack.enter_context(open_files(directory))
        block = float8_block(raw)
        found = fit(build(config, device="meta"), files, block, layers)
        return cls(directory, raw, config, block, files, found)

    def value(self, name: str) -> Tensor:
        """A stored tensor; where it is quantised, the float32 numbers it stands for."""
        stored = self.files.tensors[name]
        if not self.fit.names.scale(name):
            return self.files.read(name)
        out = torch.empty(stored.shape)
        read_into(out, self.files, self.fit.names, name, self.block)
        return out

    def in_order(self) -> list[str]:
        """Stored names by file and place: reading goes forward."""
        return sorted(
            self.files.tensors, key=lambda n: (self.files.tensors[n].file, self.files.tensors[n].start)
        )


@dataclass
class Plan:
    """Makes the entries, and remembers what became of each tensor once its bytes were asked for."""

    source: Checkpoint
    base: Checkpoint
    """Whose tensors, dtypes and config an ``hf`` result keeps; may be the source itself."""
    dtype: torch.dtype | None
    """Of the weights that no file holds in float32 on purpose; None keeps every stored dtype."""
    delta: Delta = unchanged
    """What an adapter adds."""
    instead: Delta = unchanged
    """What an adapter puts in place of a tensor."""
    became: dict[str, str] = field(default_factory=dict)

    def genoctx(self) -> list[Entry]:
        """The text model's tensors under our layer numbers."""
        hub = self.source.fit.hub
        return [self._trunk(name, hub[name]) for name in self.source.in_order() if name in hub]

    def hf(self) -> list[Entry]:
        """All tensors of the base."""
        entries = (self._kept(name) for name in self.base.in_order())
        return [entry for entry in entries if entry is not None]

    # one tensor of the genoctx form

    def _trunk(self, name: str, hub: str) -> Entry:
        stored = self.source.files.tensors[name]
        kind = self._kind(name, self.source, unquantised=True)
        size = stored.size // DTYPES[stored.dtype].itemsize * kind.itemsize
        return Entry(hub, spelling(kind), stored.shape, size, partial(self._trunk_pieces, name, hub, kind))

    def _trunk_pieces(self, name: str, hub: str, kind: torch.dtype) -> Iterable[Piece]:
        source = self.source
        changed = self._changed(source.fit.names.hub(name), source, name)
        if changed is not None:
            return self._encoded(hub, CHANGED, changed.to(kind))
        if DTYPES[source.files.tensors[name].dtype] == kind:
            return self._raw(hub, source, name)
        how = DEQUANTISED if source.fit.names.scale(name) else CAST
        return self._encoded(hub, how, source.value(name).to(kind))

    def _changed(self, hub: str, where: Checkpoint, name: str) -> Tensor | None:
        """What the adapter makes of a stored tensor; None where it leaves it alone."""
        instead, delta = self.instead(hub), self.delta(hub)
        found, needed = instead if instead is not None else delta, where.files.tensors[name].shape
        if found is not None and found.shape != needed:
            raise InputError(
                f"the adapter changes {hub} as {list(found.shape)}, it is {list(needed)}",
                "was it trained beside other weights? Take the checkpoint it belongs to",
            )
        if instead is not None or delta is None:
            return instead
        value = where.value(name)
        return value.to(torch.promote_types(value.dtype, torch.float32)) + delta

    # one tensor of the hf form

    def _kept(self, name: str) -> Entry | None:
        base = self.base
        stored = base.files.tensors[name]
        if base.fit.names.is_scale(name):
            if self.dtype is not None:
                return None
            pieces: Callable[[], Iterable[Piece]] = partial(self._scale_pieces, name)
            return Entry(name, stored.dtype, stored.shape, stored.size, pieces)
        quantised = base.fit.names.scale(name) is not None
        if name not in base.fit.hub and not (quantised and self.dtype is not None):
            pieces = partial(self._raw, name, base, name)
            return Entry(name, stored.dtype, stored.shape, stored.size, pieces)
        kind = self._kind(name, base, unquantised=self.dtype is not None)
        size = stored.size // DTYPES[stored.dtype].itemsize * kind.itemsize
        return Entry(name, spelling(kind), stored.shape, size, partial(self._kept_pieces, name, kind))

    def _kept_pieces(self, name: str, kind: torch.dtype) -> Iterable[Piece]:
        base, new = self.base, self._new_value(name)
        same_form = DTYPES[base.files.tensors[name].dtype] == kind
        if new is None and same_form:
            return self._raw(name, base, name)
        quantised = base.fit.names.scale(name) is not None
        if new is None:
            return self._encoded(name, DEQUANTISED if quantised else CAST, base.value(name).to(kind))
        if quantised and same_form:
            return self._encoded(name, REQUANTISED, self._requantised(name, new)[0])
        return self._encoded(name, CHANGED, new.to(kind))

    def _scale_pieces(self, scale: str) -> Iterable[Piece]:
        name = scale.removesuffix(SCALE)
        new = self._new_value(name)
        if new is None:
            return self._raw(scale, self.base, scale)
        return self._encoded(scale, REQUANTISED, self._requantised(name, new)[1])

    def _requantised(self, name: str, value: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.base.files.tensors[name + SCALE]
        return quantise_fp8(value, self.base.block, DTYPES[scale.dtype])

    def _new_value(self, name: str) -> Tensor | None:
        """What the source has in place of a tensor of the base; None where that is the same."""
        hub = self.base.fit.hub.get(name)
        if hub is None:
            return None
        place = name if self.source is self.base else self.source.fit.names.stored(hub)
        changed = self._changed(hub, self.source, place)
        if changed is not None or self.source is self.base:
            return changed
        value = self.source.value(place)
        old = self.base.value(name)
        if torch.equal(value, old.to(value.dtype)):
            return None
        # a source in float32 may have come from the base by way of bfloat16
        rounded = self.base.fit.names.scale(name) and torch.equal(value, old.bfloat16().to(value.dtype))
        return None if rounded else value

    # both forms

    def _kind(self, name: str, where: Checkpoint, *, unquantised: bool) -> torch.dtype:
        stored = DTYPES[where.files.tensors[name].dtype]
        if unquantised and where.fit.names.scale(name):
            return self.dtype or torch.bfloat16  # what a quantised weight is trained in (spec section 4.3)
        return stored if self.dtype is None or name.endswith(FP32_HELD) else self.dtype

    def _raw(self, result: str, where: Checkpoint, name: str) -> Iterator[Piece]:
        self.became[result] = COPIED
        return where.files.pieces(name)

    def _encoded(self, result: str, how: str, tensor: Tensor) -> list[Piece]:
        self.became[result] = how
        return [as_bytes(tensor)]


def hub_json(plan: Plan) -> dict[str, Any]:
    """The base's config for other dtypes than its own: nothing is quantised any more."""
    assert plan.dtype is not None
    text = str(plan.dtype).removeprefix("torch.")

    def rewritten(part: dict[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in part.items() if k != "quantization_config"}
        return {k: text if k in ("dtype", "torch_dtype") else v for k, v in kept.items()}

    raw = rewritten(plan.base.raw)
    if isinstance(raw.get("text_config"), dict):
        raw["text_config"] = rewritten(raw["text_config"])
    from_hub(raw)
    return raw
