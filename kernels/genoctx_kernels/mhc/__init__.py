"""Manifold-constrained hyper-connections: n residual streams read, mixed and written per block."""

from genoctx_kernels.mhc.op import mhc_mix, mhc_read

__all__ = ["mhc_mix", "mhc_read"]
