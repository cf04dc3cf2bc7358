"""Cross-entropy over the full logits, ordinary autograd: the oracle.

nats_t = share_t (logsumexp(W h_t) - (W h_t)[target_t])          0 where target_t is negative
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from genoctx_kernels.numerics import up


def linear_cross_entropy_reference(
    h_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, share_T: Tensor | None = None
) -> Tensor:
    """Sum of nats, each times its ``share_T``, over the tokens that have a target."""
    logits = up(h_TD @ weight_VD.T)
    nats = F.cross_entropy(logits, targets_T.clamp_min(-1), ignore_index=-1, reduction="none")
    return (nats if share_T is None else nats * share_T).sum()
