"""flash-linear-attention's KDA, plain torch and Triton, as a peer: the extra ``fla``, imported here alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import Tensor

from genoctx.errors import UsageError


def kda_naive() -> Callable[..., Tensor]:
    """Their chunked KDA in plain torch: ``f(q, k, v, g, beta)`` of [B, T, H, K], q without its scale.

    T must be a multiple of 64.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no GPU
        try:
            from fla.ops.kda.naive import naive_chunk_kda
        except ImportError as error:
            raise UsageError("fla-core is not installed", "install it: pip install 'genoctx[fla]'") from error

    def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return naive_chunk_kda(q, k, v, g, beta)[0]

    return run


def kda_chunk() -> Callable[..., Tensor]:
    """Their Triton kernel, for a GPU: ``f(q, k, v, g, beta)`` as ``kda_naive``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from fla.ops.kda import chunk_kda
        except ImportError as error:
            raise UsageError("fla-core is not installed", "install it: pip install 'genoctx[fla]'") from error

    def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return chunk_kda(q, k, v, g, beta)[0]

    return run
