"""DeepSeek sparse attention with pooled index keys (KPool): pooling, selection, attention, indexer KL.

One sequence at a time; token positions are relative to the first real token. Pool j holds tokens
P*j .. P*j+P-1; only complete pools have a key. Ids are pool ids, int32, -1 where unused.
"""

from genoctx_kernels.dsa.attention import sparse_attention
from genoctx_kernels.dsa.indexer import pool_keys, select_pools
from genoctx_kernels.dsa.kl import indexer_kl

__all__ = ["indexer_kl", "pool_keys", "select_pools", "sparse_attention"]
