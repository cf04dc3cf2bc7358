"""LM head and cross-entropy in tiles of tokens: the logits of a window never exist at once."""

from genoctx_kernels.loss.op import Nats, linear_cross_entropy, score_tokens

__all__ = ["Nats", "linear_cross_entropy", "score_tokens"]
