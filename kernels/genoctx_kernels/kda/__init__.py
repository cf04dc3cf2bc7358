"""Kimi Delta Attention: a gated delta rule with one decay per key channel (arXiv 2510.26692)."""

from genoctx_kernels.kda.op import kda

__all__ = ["kda"]
