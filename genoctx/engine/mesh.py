"""Who works with whom: the ranks of a run as device meshes, from the numbers of ``[parallel]``.

The ranks form a grid of dp x cp. Ranks of one dp row share a window and hold pieces of each of its
chunks (context parallelism); rows take different windows (data parallelism). Expert groups are
cut from the same ranks: ``ep`` consecutive ones hold the experts of a layer between them, and the
``world / ep`` groups hold copies, which are sharded once more. All parameters are sharded over all
ranks, so no dimension costs memory.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from genoctx.errors import ConfigError, GenoctxError, shared

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """How many ranks there are along each dimension."""

    dp: int
    """Windows in work at a time."""
    cp: int = 1
    """Ranks that share a window."""
    ep: int = 1
    """Ranks that share the experts of a layer."""

    @classmethod
    def of(cls, world: int, *, dp: int = 0, cp: int = 1, ep: int = 1, experts: int = 0) -> Layout:
        """The layout of ``world`` ranks; ``dp`` 0 takes what cp leaves. Raises ConfigError with the numbers.

        ``experts`` of a layer must split evenly over ``ep``; 0 for a model without.
        """
        if world % cp or (dp and dp * cp != world):
            rest = f"{dp} x {cp}" if dp else f"a multiple of {cp}"
            raise ConfigError(
                f"parallel.dp x parallel.cp is {rest}, and there are {world} ranks",
                "start dp x cp ranks, or leave parallel.dp at 0: all that parallel.cp leaves",
            )
        if world % ep:
            raise ConfigError(
                f"parallel.ep {ep} does not divide the {world} ranks", "use a divisor of the number of ranks"
            )
        if ep > 1 and experts % ep:
            raise ConfigError(
                f"parallel.ep {ep} does not divide the {experts} experts of a layer",
                "use a divisor of model.n_routed_experts",
            )
        return cls(world // cp, cp, ep)

    @property
    def world(self) -> int:
        return self.dp * self.cp


class Mesh:
    """The process groups of a layout. Made by every rank at the same time, after init_process_group."""

    def __init__(self, layout: Layout, device_type: str = "cpu", seconds: float = 1800.0) -> None:
        """``seconds``: how long a rank may wait for another on the host.

        Raises ConfigError when the running job has another number of ranks.
        """
        self.layout = layout
        self.rank, world = dist.get_rank(), dist.get_world_size()
        if layout.world != world:
            raise ConfigError(f"the layout has {layout.world} ranks, the job {world}")
        self.windows = init_device_mesh(device_type, (layout.dp, layout.cp), mesh_dim_names=("dp", "cp"))
        self.all = init_device_mesh(device_type, (world,), mesh_dim_names=("all",))
        shape = (world // layout.ep, layout.ep)
        self.experts = init_device_mesh(device_type, shape, mesh_dim_names=("copy", "ep"))
        # how tensors are cut in files; on the host, and nobody talks over these two
        self.all_by_part = DeviceMesh(
            "cpu", torch.arange(world), mesh_dim_names=("all",), _init_backend=False
        )
        # the expert dimension: first over ep, then each part over the copies
        grid = torch.arange(world).view(shape).T.contiguous()
        self.experts_by_part = DeviceMesh("cpu", grid, mesh_dim_names=("ep", "copy"), _init_backend=False)
        limit = datetime.timedelta(seconds=seconds)
        self.control = dist.new_group(backend="gloo", timeout=limit)
        """For words between ranks on the host: stop requests, paths, errors."""
        self.files = dist.new_group(backend="gloo", timeout=limit)
        """For checkpoints, which may be written while training goes on."""

    @property
    def dp_rank(self) -> int:
        """Which of the windows in work this rank has."""
        return self.rank // self.layout.cp

    @property
    def cp_rank(self) -> int:
        """Which pieces of its chunks (genoctx/model/parallel/pieces.py)."""
        return self.rank % self.layout.cp

    @property
    def cp_group(self) -> dist.ProcessGroup:
        """The ranks that share this rank's window, in the order of their first pieces."""
        return self.windows.get_group("cp")

    @property
    def ep_group(self) -> dist.ProcessGroup:
        """The ranks that hold the experts of a layer between them."""
        return self.experts.get_group("ep")

    @property
    def ep_rank(self) -> int:
        """Which of the experts of a layer this rank has."""
        return self.rank % self.layout.ep

    @property
    def first(self) -> bool:
        """The rank that writes what is there once."""
        return self.rank == 0

    def together(self, action: Callable[[], T]) -> T:
        """What ``action`` returns here. If it fails on any rank, every rank raises the first one's error."""
        result: list[T] = []
        own: GenoctxError | None = None
        packed: tuple[type[GenoctxError], str, str] | None = None
        try:
            result.append(action())
        except GenoctxError as error:
            own, packed = error, (type(error), error.message, error.hint)
        for told in self.everybodys(packed):
            if told is not None:
                raise shared(*told) from own
        return result[0]

    def everybodys(self, value: T) -> list[T]:
        """The ``value`` of every rank, in order, on all of them."""
        found: list[Any] = [None] * self.layout.world
        dist.all_gather_object(found, value, group=self.control)
        return found

    def gather(self, value: T) -> list[T]:
        """On the first rank everybody's ``value``, in order; nothing elsewhere."""
        found: list[Any] | None = [None] * self.layout.world if self.first else None
        dist.gather_object(value, found, dst=0, group=self.control)
        return found or []

    def sum(self, *values: float) -> list[float]:
        """Sums over all ranks, float64, in one collective on the host."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        return tensor.tolist()

    def largest(self, *values: float) -> list[float]:
        """Maxima over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()
