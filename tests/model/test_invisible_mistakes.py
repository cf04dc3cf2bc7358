"""The nearly invisible mistakes of spec section 7.1, each made visible by inputs near its epsilon.

Every test states the right closed form and that the mistaken one would be far away.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from genoctx.model.block import Objectives
from genoctx.model.carry import Chunk
from genoctx.model.config import ModelConfig
from genoctx.model.dsa import Indexer
from genoctx.model.hybrid import Hybrid, build
from genoctx.model.norms import l2_normalise
from genoctx_kernels.mhc import mhc_read

SHAPE = ModelConfig(
    vocab_size=8, hidden_size=8, num_hidden_layers=1, first_k_dense_replace=1, intermediate_size=8,
    n_routed_experts=2, num_experts_per_tok=1, linear_num_heads=2, linear_head_dim=4, linear_gate_low_rank=4,
    num_attention_heads=2, q_lora_rank=4, kv_lora_rank=4, qk_nope_head_dim=4, v_head_dim=4, index_n_heads=2,
    index_head_dim=4, index_topk=8, index_kpool=4, pad_token_id=None,
)  # fmt: skip


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def differ(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


class _Given(nn.Module):
    """A layer that puts out given streams."""

    def __init__(self, streams: Tensor) -> None:
        super().__init__()
        self.streams = streams

    def forward(self, chunk: Chunk, carry: object) -> tuple[Chunk, object]:
        return Chunk(self.streams, chunk.skip), carry


def test_streams_collapse_by_mean_not_sum() -> None:
    model: Hybrid = build(SHAPE, dtype=torch.float64, objectives=Objectives())
    streams = 1e-3 * draw(1, 5, 4, 8)  # mean square near rms_norm_eps
    carry = model.initial_carry(1, 5)
    model.layers[0] = _Given(streams)
    hidden = model(torch.zeros(1, 5, dtype=torch.long), carry).hidden

    def normed(h: Tensor) -> Tensor:
        return h / torch.sqrt(h.square().mean(-1, keepdim=True) + 1e-5)

    assert differ(hidden, normed(streams.mean(2))) < 1e-12
    assert differ(normed(streams.sum(2)), normed(streams.mean(2))) > 0.1


def test_hc_eps_is_added_to_pre() -> None:
    streams, maps = draw(3, 4, 6), 24
    base = torch.zeros(maps, dtype=torch.float64)
    base[:4] = -60.0  # sigmoid vanishes: what is left of pre is hc_eps
    fn, scale = torch.zeros(maps, 24, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    x, _, _ = mhc_read(streams, fn, base, scale, iters=20, hc_eps=1e-6, rms_eps=1e-5)
    assert differ(x, 1e-6 * streams.sum(1)) < 1e-9


def test_mhc_rms_eps_is_the_norms_not_hc_eps() -> None:
    streams = 1e-3 * draw(3, 4, 6)
    fn = draw(24, 24)
    zeros, ones = torch.zeros(24, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def post(eps: float) -> Tensor:
        flat = streams.flatten(1)
        z = flat / torch.sqrt(flat.square().mean(-1, keepdim=True) + eps) @ fn.T
        return 2 * torch.sigmoid(z[:, 4:8])

    _, ours, _ = mhc_read(streams, fn, zeros, ones, iters=20, hc_eps=1e-6, rms_eps=1e-5)
    assert differ(ours, post(1e-5)) < 1e-12
    assert differ(post(1e-6), post(1e-5)) > 0.1


def test_l2_eps_is_1e_6_inside_the_root() -> None:
    x = 3e-4 * draw(5, 4)

    def normalised(eps: float) -> Tensor:
        return x / torch.sqrt(x.square().sum(-1, keepdim=True) + eps)

    assert differ(l2_normalise(x), normalised(1e-6)) < 1e-12
    assert differ(normalised(1e-5), normalised(1e-6)) > 0.1
    assert differ(normalised(0.0), normalised(1e-6)) > 0.1


def test_indexer_key_norm_eps_is_1e_6_with_bias() -> None:
    indexer = Indexer(SHAPE).double()
    with torch.no_grad():
        indexer.wk.weight.copy_(draw(4, 8))
        indexer.k_norm.bias.copy_(draw(4))
    x = 1e-3 * draw(1, 5, 8)
    k = indexer(x, draw(1, 5, 4)).k

    def normed(eps: float) -> Tensor:
        raw = x @ indexer.wk.weight.T
        centred = raw - raw.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) + indexer.k_norm.bias

    assert differ(k, normed(1e-6)) < 1e-12
    assert differ(normed(1e-5), normed(1e-6)) > 0.05
