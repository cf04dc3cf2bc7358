"""The DSA layer's mixer: NoPE MLA in absorbed form over pools that the KPool indexer selects.

Spec sections 2.7, 2.8 and 3. Projections run on the whole batch; prefix, selection and attention are
per row, because rows may start at different tokens (left padding) and pools start with the row.

Letters: B rows, T tokens, D hidden, H heads, Q qk width, V value width, R latent width, I index width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from genoctx.model.adapter import pair_of
from genoctx.model.carry import Allocate, Chunk, DsaCarry, DsaRow, Prefix, Storage, working_like
from genoctx.model.config import ModelConfig
from genoctx.model.linear import Linear
from genoctx.model.norms import LayerNorm, RMSNorm
from genoctx.model.parallel.edges import Edges, exchange
from genoctx.model.parallel.pieces import RowPieces
from genoctx.model.parallel.rows import extend
from genoctx_kernels.dsa import indexer_kl, pool_keys, select_pools, sparse_attention
from genoctx_kernels.dsa.kl import Teacher


@dataclass(frozen=True)
class IndexInputs:
    """The indexer's view of a chunk, [B, T, ...]."""

    k: Tensor
    gate: Tensor
    q: Tensor
    weights: Tensor


class Indexer(nn.Module):
    """Scores pools of ``index_kpool`` tokens. Its inputs are detached: the LM loss never reaches it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads, width, pool = config.index_n_heads, config.index_head_dim, config.index_kpool
        self.heads, self.pool, self.top = heads, pool, config.topk_pools
        self.wq_b = Linear(config.q_lora_rank, heads * width)
        self.wk = Linear(config.hidden_size, width)
        self.weights_proj = Linear(config.hidden_size, heads)
        self.k_norm = LayerNorm(width)
        self.index_kpool_compress_ape = nn.Parameter(torch.zeros(pool, width))
        self.index_kpool_compress_gate = nn.Parameter(torch.ones(width, config.hidden_size))

    def forward(self, x_BTD: Tensor, ql_BTQ: Tensor) -> IndexInputs:
        x, ql = x_BTD.detach(), ql_BTQ.detach()
        return IndexInputs(
            k=self.k_norm(self.wk(x)),
            gate=x @ self.index_kpool_compress_gate.T,
            q=self.wq_b(ql).unflatten(-1, (self.heads, -1)),
            weights=self.weights_proj(x) * self.heads**-0.5,
        )


class SparseAttention(nn.Module):
    """``forward(x, chunk, carry) -> (y, carry, pools, kl)``; ``kl_mode`` off, 'sparse' or 'dense'."""

    def __init__(self, config: ModelConfig, kl_mode: str) -> None:
        super().__init__()
        hidden, self.heads = config.hidden_size, config.num_attention_heads
        self.qk, self.v, self.latent = config.qk_nope_head_dim, config.v_head_dim, config.kv_lora_rank
        self.pool, self.top, self.kl_mode = config.index_kpool, config.topk_pools, kl_mode
        self.q_a_proj = Linear(hidden, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = Linear(config.q_lora_rank, self.heads * self.qk)
        self.kv_a_proj_with_mqa = Linear(hidden, self.latent)
        self.kv_a_layernorm = RMSNorm(self.latent, config.rms_norm_eps)
        self.kv_b_proj = Linear(self.latent, self.heads * (self.qk + self.v))
        self.o_proj = Linear(self.heads * self.v, hidden)
        self.indexer = Indexer(config)
        if kl_mode == "off":
            self.indexer.requires_grad_(False)

    def initial_carry(self, batch: int, capacity: int, allocate: Allocate | None = None) -> DsaCarry:
        """Empty prefixes with room for ``capacity`` tokens a row, in memory from ``allocate``."""
        weight, pools = working_like(self.q_a_proj.weight), -(-capacity // self.pool)
        width = self.indexer.k_norm.weight.shape[0]
        empty = weight.new_zeros(0, width)
        zeros = allocate or (lambda shape, dtype: weight.new_zeros(shape, dtype=dtype))

        def row() -> DsaRow:
            latents = Storage(zeros((pools * self.pool, self.latent), weight.dtype))
            keys = Storage(zeros((pools, width), weight.dtype))
            return DsaRow(Prefix(latents), Prefix(keys), empty, empty)

        return DsaCarry(tuple(row() for _ in range(batch)))

    def _per_head(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys' [H, Q, ...] and values' [H, V, ...] rows of kv_b (per head the first Q are keys)."""
        per_head = rows.unflatten(0, (self.heads, self.qk + self.v))
        return per_head[:, : self.qk], per_head[:, self.qk :]

    def _absorbed_queries(self, q_BTHQ: Tensor) -> Tensor:
        """q W_UK: queries that meet latents instead of keys, [B, T, H, R]."""
        keys, _ = self._per_head(self.kv_b_proj.weight)
        q = torch.einsum("bthq,hqr->bthr", q_BTHQ, keys)
        if pair := pair_of(self.kv_b_proj, q.dtype):
            keys, _ = self._per_head(pair.b)
            q = q + torch.einsum("bthq,hqr->bthr", q_BTHQ, keys) @ pair.a
        return q

    def _values(self, out_BTHR: Tensor) -> Tensor:
        """W_UV o: values from sums of latents, [B, T, H, V]."""
        _, values = self._per_head(self.kv_b_proj.weight)
        out = torch.einsum("bthr,hvr->bthv", out_BTHR, values)
        if pair := pair_of(self.kv_b_proj, out.dtype):
            _, values = self._per_head(pair.b)
            out = out + torch.einsum("bthr,hvr->bthv", out_BTHR @ pair.a.T, values)
        return out

    def forward(
        self, x: Tensor, chunk: Chunk, carry: DsaCarry
    ) -> tuple[Tensor, DsaCarry, tuple[Tensor, ...], Tensor | None]:
        ql = self.q_a_layernorm(self.q_a_proj(x))
        q = self._absorbed_queries(self.q_b_proj(ql).unflatten(-1, (self.heads, -1)))
        latents = self.kv_a_layernorm(self.kv_a_proj_with_mqa(x))
        replayed = chunk.choices.pools if chunk.choices else None
        with_kl = self.kl_mode != "off" and torch.is_grad_enabled()
        index = self._index(x, ql) if replayed is None or with_kl else None

        outs, rows, pools, kls = [], [], [], []
        for b, row in enumerate(carry.rows):
            skip = min(chunk.skip[b], x.shape[1])
            at = chunk.pieces.real(b) if chunk.pieces else None
            piece = _Piece(self, q[b, skip:], latents[b, skip:], row, at)
            if index is not None:
                piece.index(_cut(index, b, skip), replayed[b] if replayed else None)
            elif replayed is not None:
                piece.pools = replayed[b]
            outs.append(torch.nn.functional.pad(piece.attend(), (0, 0, 0, 0, skip, 0)))
            rows.append(piece.row)
            pools.append(piece.pools)
            if with_kl:
                kls.append(piece.kl(self.kl_mode == "dense"))
        out = self._values(torch.stack(outs))
        kl = torch.stack(kls).sum() if kls else None
        return self.o_proj(out.flatten(-2)), DsaCarry(tuple(rows)), tuple(pools), kl

    def _index(self, x: Tensor, ql: Tensor) -> IndexInputs:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.kl_mode != "off"):
            inputs: IndexInputs = self.indexer(x, ql)
        return inputs


def _cut(index: IndexInputs, b: int, skip: int) -> IndexInputs:
    return IndexInputs(*(getattr(index, f)[b, skip:] for f in ("k", "gate", "q", "weights")))


class _Piece:
    """One row's part of a chunk: extends the prefix, selects, attends, compares.

    ``at`` says which tokens of the chunk these are where other ranks have the rest of it.
    """

    def __init__(
        self, layer: SparseAttention, q_THR: Tensor, latents_TR: Tensor, row: DsaRow, at: RowPieces | None
    ) -> None:
        self.layer, self.q, self.at = layer, q_THR, at
        self.start = row.latents.length
        self.first = self.start + (at.before if at else 0)
        prefix, self.own = self._extended(row.latents, latents_TR, at, "latents", layer.pool)
        self.row = replace(row, latents=prefix)
        self.scale = layer.qk**-0.5
        self.pools: Tensor

    @staticmethod
    def _extended(
        prefix: Prefix, own: Tensor, at: RowPieces | None, kind: str, multiple: int = 1
    ) -> tuple[Prefix, Tensor]:
        return (prefix.extend(own, multiple), own) if at is None else extend(prefix, own, at, kind, multiple)

    def index(self, inputs: IndexInputs, replayed: Tensor | None) -> None:
        """Pool the new keys (with the open pool's) and choose, unless the choice is given."""
        pool, row, at = self.layer.pool, self.row, self.at
        open_k, open_gate, leaving = row.open_k, row.open_gate, None
        if at is not None:
            open_k, open_gate, *leaving = self._open_pools(inputs, at)
        k, gate = torch.cat((open_k, inputs.k)), torch.cat((open_gate, inputs.gate))
        self.inputs = inputs
        with torch.set_grad_enabled(k.requires_grad):
            own_keys = pool_keys(k, gate, self.layer.indexer.index_kpool_compress_ape)
        whole = len(own_keys) * pool
        # clones: a view of these few rows would keep the whole chunk's keys alive in every carry
        open_k, open_gate = leaving or (k[whole:].clone(), gate[whole:].clone())
        completed = at.pools(self.start, pool) if at else None
        keys, self.own_keys = self._extended(row.keys, own_keys, completed, "pooled keys")
        self.row = DsaRow(row.latents, keys, open_k, open_gate)
        if replayed is not None:
            self.pools = replayed
        else:
            self.pools = select_pools(
                inputs.q, inputs.weights, self._seen_keys(), self.first, pool, self.layer.top
            )

    def _open_pools(self, inputs: IndexInputs, at: RowPieces) -> tuple[Tensor, ...]:
        """Keys and gates of the pool that is open before this rank's piece, and behind the chunk."""
        pool, row, group = self.layer.pool, self.row, at.group
        positions = [self.start + sum(at.counts[:rank]) for rank in range(group.size + 1)]
        needs = tuple(position % pool for position in positions)
        edges = Edges(group, at.counts, pool - 1, len(row.open_k), needs, "open pools")
        own = torch.cat((inputs.k, inputs.gate), -1)[len(inputs.k) - edges.given(group.rank) :]
        tail = torch.cat((row.open_k, row.open_gate), -1)
        before, after = exchange(own.unsqueeze(0), tail.unsqueeze(0), edges)
        return *before.squeeze(0).chunk(2, -1), *after.squeeze(0).chunk(2, -1)

    def _seen_keys(self) -> Tensor:
        """Keys of the pools that are complete at this piece's last token."""
        return self.row.keys.storage.rows[: (self.first + len(self.q)) // self.layer.pool]

    def attend(self) -> Tensor:
        storage = self.row.latents.storage
        return sparse_attention(
            self.q,
            self.own,
            storage.rows,
            self.pools,
            first=self.first,
            pool=self.layer.pool,
            scale=self.scale,
            d_buffer_SR=storage.gradient,
        )

    def kl(self, dense: bool) -> Tensor:
        teacher = Teacher(self.q.detach(), self.row.latents.storage.rows, self.scale)
        return indexer_kl(
            self.inputs.q,
            self.inputs.weights,
            self.own_keys,
            self._seen_keys(),
            teacher,
            ids_TK=None if dense else self.pools,
            first=self.first,
            pool=self.layer.pool,
            d_keys_JD=self.row.keys.storage.gradient,
        )
