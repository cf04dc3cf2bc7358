"""Where every (token, expert) pair lies once pairs are sorted by expert; made on the device, without waiting for it.

Letters: M tokens, A choices a token, E experts, R rows (pairs and padding), S tiles of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Plan(NamedTuple):
    """Each expert's pairs lie in token order from the start of a tile; what is left of its last tile is padding.

    How many tiles there are depends on the choices and is known to the device only; R and S are upper bounds.
    """

    row_MA: Tensor
    """int64: row of each pair."""
    token_R: Tensor
    """int32: token of each row; -1 for padding."""
    expert_S: Tensor
    """int32: expert of each tile; E for tiles that do not exist."""
    first_E: Tensor
    """int64: first row of each expert."""
    count_E: Tensor
    """int64: pairs of each expert."""


def make_plan(experts_MA: Tensor, experts: int, tile: int) -> Plan:
    """The plan for int64 ``experts_MA`` out of ``experts``, with ``tile`` rows a tile."""
    flat, choices, device = experts_MA.flatten(), experts_MA.shape[1], experts_MA.device
    pairs = len(flat)
    of_pair, order = flat.sort(stable=True)
    ids = torch.arange(experts + 1, device=device)
    start = torch.searchsorted(of_pair, ids)
    count = start.diff()
    last_tile = ((count + tile - 1) // tile).cumsum(0)
    first = torch.cat((last_tile.new_zeros(1), last_tile[:-1])) * tile
    row = torch.arange(pairs, device=device) + (first - start[:-1])[of_pair]
    tiles = pairs // tile + min(experts, pairs)
    token = torch.full((tiles * tile,), -1, dtype=torch.int32, device=device)
    token[row] = (order // choices).to(torch.int32)
    row_MA = torch.empty_like(row)
    row_MA[order] = row
    expert = torch.searchsorted(last_tile, torch.arange(tiles, device=device), right=True)
    return Plan(row_MA.view(-1, choices), token, expert.to(torch.int32), first, count)
