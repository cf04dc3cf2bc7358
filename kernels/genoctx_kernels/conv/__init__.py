"""Short depthwise causal convolution with SiLU, continuing from the last raw tokens."""

from genoctx_kernels.conv.op import short_conv

__all__ = ["short_conv"]
