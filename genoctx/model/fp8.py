"""Weights in blocks of float8 e4m3 with one float32 scale a block (spec section 4.3).

``W[i, j] = fp8[i, j] * scale_inv[i // rows, j // columns]``: a multiplication, in spite of the name.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx.model.hub_config import FLOAT8_BLOCK as BLOCK

Block = tuple[int, int]

FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FP8).max


def scale_grid(shape: tuple[int, ...], block: Block = BLOCK) -> tuple[int, ...]:
    """Shape of the scales of a matrix: one number a block, cut ones at the edges included."""
    return tuple(-(-size // step) for size, step in zip(shape, block, strict=True))


def dequantise_into(target: Tensor, weight: Tensor, scale_inv: Tensor, block: Block = BLOCK) -> None:
    """Write the product, computed in float32, into ``target`` [rows, columns] of any dtype and device.

    One row of blocks at a time: beside the tensors that come in, only that much is held.
    """
    rows, columns = block
    for r, scales in enumerate(scale_inv.float()):
        tile = weight[r * rows : (r + 1) * rows].float()
        tile *= scales.repeat_interleave(columns)[: tile.shape[1]]
        target[r * rows : (r + 1) * rows].copy_(tile)


def dequantise_fp8(weight: Tensor, scale_inv: Tensor, block: Block = BLOCK) -> Tensor:
    """The product as a float32 matrix."""
    out = torch.empty(weight.shape)
    dequantise_into(out, weight, scale_inv, block)
    return out


def quantise_fp8(
    weight: Tensor, block: Block = BLOCK, scale_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """(float8 e4m3, scale_inv) of a matrix: each block's largest entry becomes the largest float8.

    A block of zeros gets scale 1. Rounding is to nearest: relative error up to 2^-4 a number.
    """
    rows, columns = block
    out = torch.empty(weight.shape, dtype=FP8)
    scale_inv = torch.ones(scale_grid(tuple(weight.shape), block), dtype=scale_dtype)
    padded = scale_inv.shape[1] * columns - weight.shape[1]
    for r, scales in enumerate(scale_inv):
        tile = weight[r * rows : (r + 1) * rows].float()
        largest = torch.nn.functional.pad(tile.abs().amax(0), (0, padded)).view(-1, columns).amax(1)
        scales.copy_(torch.where(largest > 0, largest / _LARGEST, scales))
        tile = tile / scales.float().repeat_interleave(columns)[: tile.shape[1]]
        out[r * rows : (r + 1) * rows] = tile.clamp(-_LARGEST, _LARGEST).to(FP8)
    return out, scale_inv
