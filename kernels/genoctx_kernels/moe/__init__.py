"""Routed experts: tokens sorted by expert, one product per expert and projection."""

from genoctx_kernels.moe.op import Pair, routed_experts

__all__ = ["Pair", "routed_experts"]
