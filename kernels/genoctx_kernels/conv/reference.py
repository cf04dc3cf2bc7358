"""Short convolution as ``torch.nn.functional.conv1d``: the oracle.

y_t[c] = silu( sum_{i=0..W-1} w[c, i] x_{t-W+1+i}[c] )      tap W-1 is the current token
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.numerics import up


def short_conv_reference(x_BTC: Tensor, weight_CW: Tensor, tail_BWC: Tensor) -> Tensor:
    """``tail_BWC`` holds the W-1 raw tokens before ``x_BTC`` (zeros at the start of a sequence)."""
    past = F.pad(x_BTC, (0, 0, tail_BWC.shape[1], 0)).clone()
    past[:, : tail_BWC.shape[1]] = tail_BWC
    out = F.conv1d(up(past).mT, up(weight_CW).unsqueeze(1), groups=weight_CW.shape[0])
    return F.silu(out).mT.to(x_BTC.dtype)
