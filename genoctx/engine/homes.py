"""Homes: where everything long-lived lies. The device, host memory of exact size, or mapped files.

Six categories (genoctx/engine/bytes.py), each with a home of its own. A tensor's home changes where its
bytes are and how they travel, never what they are. On a CPU every home is ordinary memory that is
computed on directly; beside a GPU, carries and ids travel chunk by chunk (genoctx/engine/pinned.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from genoctx.engine.allowed import refuse_homes
from genoctx.engine.bytes import CATEGORIES
from genoctx.engine.mapped import MappedFiles
from genoctx.engine.pinned import Arrival, Courier, pinned_zeros

Where = Literal["device", "host", "file"]


class Home(Protocol):
    """A kind of memory, and how tensors get there and back."""

    moves: bool
    """Things go there from where they are made."""
    apart: bool
    """Nothing is computed on there: what is needed has to be sent for."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros of ``shape``."""

    def store(self, place: Tensor, tensor: Tensor) -> None:
        """Copy ``tensor`` into ``place``, a view of what was allocated; may return before it is done."""

    def send_for(self, places: Sequence[Tensor]) -> Arrival:
        """Start to bring ``places`` to where the model computes."""

    def ahead(self, places: Iterable[Tensor]) -> None:
        """Say that the host will want ``places`` soon."""

    def behind(self, places: Iterable[Tensor]) -> None:
        """Say that ``places`` are not needed for some time."""

    def settle(self) -> None:
        """Wait until ``place``s hold what was stored."""

    def require(self, nbytes: int) -> None:
        """GenoctxError when a disk has no room for ``nbytes`` more; they are reserved and given back."""


class InPlace:
    """Memory that the model computes on: of the device, or of the host where that is the device."""

    moves = False
    apart = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def store(self, place: Tensor, tensor: Tensor) -> None:
        place.copy_(tensor)

    def send_for(self, places: Sequence[Tensor]) -> Arrival:
        return lambda: list(places)

    def ahead(self, places: Iterable[Tensor]) -> None:
        del places

    def behind(self, places: Iterable[Tensor]) -> None:
        del places

    def settle(self) -> None:
        return

    def require(self, nbytes: int) -> None:
        del nbytes  # what memory holds is told by the allocator alone


class FileHome(InPlace):
    """Mapped files that a CPU computes on; pages come and go with the kernel's advice."""

    moves = True

    def __init__(self, folder: Path) -> None:
        super().__init__(torch.device("cpu"))
        self.files = MappedFiles(folder)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.files.allocate(shape, dtype)

    def send_for(self, places: Sequence[Tensor]) -> Arrival:
        self.files.ahead(places)
        return lambda: list(places)

    def ahead(self, places: Iterable[Tensor]) -> None:
        self.files.ahead(places)

    def behind(self, places: Iterable[Tensor]) -> None:
        self.files.behind(places)

    def require(self, nbytes: int) -> None:
        self.files.require(nbytes)


class Beside:
    """Host memory or mapped files beside a GPU: copies both ways on a side stream."""

    moves = True
    apart = True

    def __init__(self, device: torch.device, files: MappedFiles | None) -> None:
        self.courier, self.files = Courier(device), files

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.files is not None:
            return self.files.allocate(shape, dtype)
        return pinned_zeros(shape, dtype)

    def store(self, place: Tensor, tensor: Tensor) -> None:
        self.courier.take_away(place, tensor)

    def send_for(self, places: Sequence[Tensor]) -> Arrival:
        self.ahead(places)
        return self.courier.send_for(places)

    def ahead(self, places: Iterable[Tensor]) -> None:
        if self.files is not None:
            self.files.ahead(places)

    def behind(self, places: Iterable[Tensor]) -> None:
        if self.files is not None:
            self.courier.settle()
            self.files.behind(places)

    def settle(self) -> None:
        self.courier.settle()

    def require(self, nbytes: int) -> None:
        if self.files is not None:
            self.files.require(nbytes)


@dataclass(frozen=True)
class Homes:
    """The home of every category."""

    by_category: Mapping[str, Home]

    def __getitem__(self, category: str) -> Home:
        return self.by_category[category]

    def require(self, nbytes: Mapping[str, int]) -> None:
        """GenoctxError when a disk has no room for so many bytes of each category, all of them together."""
        homes = {id(home): home for home in self.by_category.values()}
        wanted = Counter[int]()
        for category, size in nbytes.items():
            wanted[id(self[category])] += size
        for key, size in wanted.items():
            homes[key].require(size)

    @classmethod
    def on(cls, device: torch.device) -> Homes:
        """Everything where the model computes."""
        return cls(dict.fromkeys(CATEGORIES, InPlace(device)))

    @classmethod
    def of(cls, wanted: Mapping[str, Where], device: torch.device, folder: Path) -> Homes:
        """Homes by category; those that ``wanted`` leaves out are on the device. Files go to ``folder``.

        Raises ConfigError for what a GPU cannot have elsewhere.
        """
        refuse_homes(wanted, gpu=device.type != "cpu")
        made: dict[Where, Home] = {"device": InPlace(device)}
        for kind in {*wanted.values()} - {"device"}:
            if device.type == "cpu":
                made[kind] = FileHome(folder) if kind == "file" else made["device"]
            else:
                made[kind] = Beside(device, MappedFiles(folder) if kind == "file" else None)
        return cls({name: made[wanted.get(name, "device")] for name in CATEGORIES})
