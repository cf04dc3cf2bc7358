"""How the Triton kernels of KDA are launched: products, tiles, warps, grids. The ahead-of-time test reads it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

SUB = 16
IEEE, SPLIT = "ieee", "split"


@dataclass(frozen=True)
class Tile:
    """Key and value columns of a program, and how it is run."""

    key: int = 32
    value: int = 32
    warps: int = 4
    stages: int = 1
    """Iterations of a loop whose loads are in flight at once."""


TILES = {
    IEEE: {
        "scan_kernel": Tile(value=16, warps=8),
        "scan_back_kernel": Tile(value=16, warps=8),
    },
    SPLIT: {
        "scan_kernel": Tile(value=16, stages=2),
        "scan_back_kernel": Tile(value=16),
    },
}
"""Per way of multiplying and kernel, where ``Tile()`` would spill registers: found by compiling at width 128."""

BLOCKS = {IEEE: 32, SPLIT: 64}
"""Tokens of a block: float32 products hold whole rows of both operands in registers, so they get shorter ones."""


def products(*tensors: Tensor) -> str:
    """The ``parts`` of triton_tiles.dot: float32 inputs get float32 products, narrower ones split bfloat16."""
    return IEEE if all(x.dtype == torch.float32 for x in tensors) else SPLIT


def _tile(width: int, limit: int) -> int:
    """``limit``, or the smallest power of two from 16 that holds a narrower ``width``."""
    return max(16, min(limit, triton.next_power_of_2(width)))


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for: heads, widths, block width and products (``parts`` of triton_tiles.dot)."""

    heads: int
    key: int
    value: int
    block: int
    parts: str

    def options(self, kernel: Any) -> dict[str, Any]:
        """Compile-time arguments and options of ``kernel``."""
        tile = TILES[self.parts].get(kernel.fn.__name__, Tile())
        constants = {
            "H": self.heads,
            "K": self.key,
            "V": self.value,
            "C": self.block,
            "BK": _tile(self.key, tile.key),
            "BV": _tile(self.value, tile.value),
            "PK": _tile(self.key, self.key * 2),
            "parts": self.parts,
        }
        return {n: x for n, x in constants.items() if n in kernel.arg_names} | {
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            "enable_fp_fusion": True,
        }


@dataclass(frozen=True)
class Segment:
    """A run of whole blocks of every (batch, head): ``blocks`` blocks from token ``first`` of ``tokens``."""

    shape: Shape
    rows: int
    """Batch times heads."""
    tokens: int
    first: int
    blocks: int

    @property
    def units(self) -> int:
        return self.rows * self.blocks

    def run(self, kernel: Any, axes: str, *tensors: Tensor) -> None:
        """One launch over the rows and ``axes``: "block" or "sub"-block, and "K" or "V" for the tiles of a width."""
        options = self.shape.options(kernel)
        length = {
            "block": self.blocks,
            "sub": self.blocks * self.shape.block // SUB,
            "K": triton.cdiv(self.shape.key, options.get("BK", 1)),
            "V": triton.cdiv(self.shape.value, options.get("BV", 1)),
        }
        grid = (self.rows, *(length[axis] for axis in axes.split()))
        numbers = {"T": self.tokens, "first": self.first, "blocks": self.blocks, "units": self.units}
        numbers = {n: x for n, x in numbers.items() if n in kernel.arg_names}
        kernel[grid](*tensors, **numbers, **options)
