"""SwiGLU with the clamps of GLM-5: gate from above, up on both sides."""

from genoctx_kernels.swiglu.op import clamped_swiglu

__all__ = ["clamped_swiglu"]
