"""Kimi Delta Attention: a gated delta rule with one decay per key channel (arXiv 2510.26692)."""

from genoctx_kernels.kda.op import kda
from genoctx_kernels.kda.piece import piece_map, state_gradient

__all__ = ["kda", "piece_map", "state_gradient"]
