"""Routed experts: tokens sorted by expert, one product per expert and projection."""

from genoctx_kernels.moe.op import routed_experts

__all__ = ["routed_experts"]
