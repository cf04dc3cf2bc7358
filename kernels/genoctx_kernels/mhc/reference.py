"""One mHC site as equations (spec section 2.3), ordinary autograd: the oracle.

z    = fn . rms(vec X)           one rms over all n*D entries
pre  = sigmoid(scale_0 z_pre + base_pre) + hc_eps
post = 2 sigmoid(scale_1 z_post + base_post)
C    = Sinkhorn(softmax_rows(scale_2 Z + Base) + hc_eps)       columns last
x    = sum_s pre_s X_s           X'_m = post_m y + sum_s C[s, m] X_s
"""

from __future__ import annotations

import torch
from torch import Tensor

from genoctx_kernels.numerics import up


def sinkhorn_reference(logits_TNN: Tensor, iters: int, hc_eps: float) -> Tensor:
    """Softmax over the last index, then ``iters`` column and ``iters - 1`` row normalisations."""
    c = logits_TNN.softmax(-1) + hc_eps
    c = c / (c.sum(-2, keepdim=True) + hc_eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + hc_eps)
        c = c / (c.sum(-2, keepdim=True) + hc_eps)
    return c


def mhc_read_reference(
    streams_TND: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iters: int, hc_eps: float, rms_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Block input x [T, D], post [T, n] and C [T, n, n]."""
    n = streams_TND.shape[1]
    flat = up(streams_TND.flatten(1))
    normed = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    z = normed @ up(fn).T
    base, scale = up(base), up(scale)
    pre = torch.sigmoid(scale[0] * z[:, :n] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(scale[1] * z[:, n : 2 * n] + base[n : 2 * n])
    comb = sinkhorn_reference((scale[2] * z[:, 2 * n :] + base[2 * n :]).unflatten(-1, (n, n)), iters, hc_eps)
    x = (pre.unsqueeze(-1) * up(streams_TND)).sum(1)
    return x.to(streams_TND.dtype), post, comb


def mhc_mix_reference(streams_TND: Tensor, y_TD: Tensor, post_TN: Tensor, comb_TNN: Tensor) -> Tensor:
    """Streams after the block: [T, n, D]."""
    dtype = streams_TND.dtype
    written = post_TN.to(dtype).unsqueeze(-1) * y_TD.unsqueeze(1)
    return written + torch.einsum("tsm,tsd->tmd", comb_TNN.to(dtype), streams_TND)
