"""The usual way to train on a long window, as a peer to measure against: the whole window in one piece.

Every layer is checkpointed (Chen et al. 2016, arXiv 1604.06174): forward keeps each layer's input, backward runs
the layer again. Layers and loss are our own, so a difference in time is one of streaming alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genoctx.engine.optimizer import Optimizer
from genoctx.model.block import Layer
from genoctx.model.carry import Chunk
from genoctx.model.dsa import SparseAttention
from genoctx.model.hybrid import Hybrid
from genoctx_kernels.loss import linear_cross_entropy


def whole_step(
    model: Hybrid, optimizer: Optimizer, tokens_BT: Tensor, targets_BT: Tensor
) -> tuple[float, float]:
    """Forward and backward of the mean nats per target; returns it and the gradient norm."""
    optimizer.zero_grad()
    streams = model.embed_tokens(tokens_BT).unsqueeze(2).expand(-1, -1, model.config.hc_mult, -1)
    x = streams.contiguous()
    for layer in model.layers:
        x = checkpoint(_through, layer, x, use_reentrant=False)
    hidden = model.norm(x.mean(2)).flatten(0, 1)
    nats = linear_cross_entropy(hidden, model.lm_head.weight, targets_BT.flatten(), None)
    loss = nats / int((targets_BT >= 0).sum())
    torch.autograd.backward(loss)
    return float(loss), optimizer.grad_norm()


def _through(layer: Layer, x_BTND: Tensor) -> Tensor:
    """One layer over the whole window; its carry begins and ends here."""
    batch, length = x_BTND.shape[:2]
    mixer = layer.self_attn
    carry = (
        mixer.initial_carry(batch, length)
        if isinstance(mixer, SparseAttention)
        else mixer.initial_carry(batch)
    )
    chunk, _ = layer(Chunk(x_BTND, (0,) * batch), carry)
    return chunk.x
