"""The DSA layer's mixer: NoPE MLA in absorbed form over pools that the KPool indexer selects.

Spec sections 2.7, 2.8 and 3. Projections run on the whole batch; prefix, selection and attention are
per row, because rows may start at different tokens (left padding) and pools start with the row.

Letters: B rows, T tokens, D hidden, H heads, Q qk width, V value width, R latent width, I index width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

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


@dataclass(frozen=True)
class _Run:
    """Consecutive tokens of a sequence."""

    first: int
    """Position of the first."""
    tokens: int
    pool: int

    @property
    def end(self) -> int:
        """Pools that are complete at the last token."""
        return (self.first + self.tokens) // self.pool

    @property
    def completed(self) -> int:
        """Pools that these tokens complete."""
        return self.end - self.first // self.pool


def _split(x: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    return x.split(counts) if len(counts) > 1 else (x,)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class _Piece:
    """One row's part of a chunk: extends the prefix, selects, attends, compares.

    ``at`` says which tokens of the chunk these are where other ranks have the rest of it.
    """

    def __init__(
        self, layer: SparseAttention, q_THR: Tensor, latents_TR: Tensor, row: DsaRow, at: RowPieces | None
    ) -> None:
        self.layer, self.q, self.at = layer, q_THR, at
        self.start = row.latents.length
        own = at.own if at else [(0, len(q_THR))]
        self.runs = [_Run(self.start + before, tokens, layer.pool) for before, tokens in own]
        prefix, self.own = self._extended(row.latents, latents_TR, at, "latents", layer.pool)
        self.row = replace(row, latents=prefix)
        self.scale = layer.qk**-0.5
        self.pools: Tensor

    @staticmethod
    def _extended(
        prefix: Prefix, own: Tensor, at: RowPieces | None, kind: str, multiple: int = 1
    ) -> tuple[Prefix, Tensor]:
        return (prefix.extend(own, multiple), own) if at is None else extend(prefix, own, at, kind, multiple)

    def _by_run(self, x_T: Tensor) -> tuple[Tensor, ...]:
        return _split(x_T, [run.tokens for run in self.runs])

    def index(self, inputs: IndexInputs, replayed: Tensor | None) -> None:
        """Pool the new keys (with the open pools') and choose, unless the choice is given."""
        pool, row = self.layer.pool, self.row
        self.inputs = inputs
        own_keys, open_k, open_gate = self._pooled(inputs)
        completed = self.at.pools(self.start, pool) if self.at else None
        keys, self.own_keys = self._extended(row.keys, own_keys, completed, "pooled keys")
        self.row = DsaRow(row.latents, keys, open_k, open_gate)
        self.pools = self._chosen(inputs) if replayed is None else replayed

    def _chosen(self, inputs: IndexInputs) -> Tensor:
        keys, queries = (
            self.row.keys.storage.rows,
            zip(self.runs, self._by_run(inputs.q), self._by_run(inputs.weights), strict=True),
        )
        return _joined(
            [
                select_pools(q, w, keys[: run.end], run.first, run.pool, self.layer.top)
                for run, q, w in queries
            ]
        )

    def _pooled(self, inputs: IndexInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Keys of the pools completed here; keys and gates of the pool that leaves the chunk open."""
        ks, gates, row = self._by_run(inputs.k), self._by_run(inputs.gate), self.row
        before, leaving = [(row.open_k, row.open_gate)], None
        if self.at is not None:
            before, leaving = self._open_pools(ks, gates, self.at)
        keys: list[Tensor] = []
        for (open_k, open_gate), k, gate in zip(before, ks, gates, strict=True):
            k, gate = torch.cat((open_k, k)), torch.cat((open_gate, gate))
            with torch.set_grad_enabled(k.requires_grad):
                keys.append(pool_keys(k, gate, self.layer.indexer.index_kpool_compress_ape))
        whole = len(keys[-1]) * self.layer.pool
        # clones: a view of these few rows would keep the whole chunk's keys alive in every carry
        return _joined(keys), *(leaving or (k[whole:].clone(), gate[whole:].clone()))

    def _open_pools(
        self, ks: tuple[Tensor, ...], gates: tuple[Tensor, ...], at: RowPieces
    ) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
        """Keys and gates of the pool that is open before each of these runs, and behind the chunk."""
        pool, row = self.layer.pool, self.row
        needs = tuple((self.start + count) % pool for count in accumulate(at.counts, initial=0))
        edges = Edges(at.group, at.counts, pool - 1, len(row.open_k), needs, "open pools")
        ends = [edges.last([x.unsqueeze(0) for x in xs]) for xs in (ks, gates)]
        own = [torch.cat(end, -1) for end in zip(*ends, strict=True)]
        before, after = exchange(own, torch.cat((row.open_k, row.open_gate), -1).unsqueeze(0), edges)
        *opened, leaving = (_halves(x.squeeze(0)) for x in (*before, after))
        return opened, leaving

    def attend(self) -> Tensor:
        storage, parts = self.row.latents.storage, map(self._by_run, (self.q, self.own, self.pools))
        outs = [
            sparse_attention(
                q,
                own,
                storage.rows,
                pools,
                first=run.first,
                pool=run.pool,
                scale=self.scale,
                d_buffer_SR=storage.gradient,
            )
            for run, q, own, pools in zip(self.runs, *parts, strict=True)
        ]
        return _joined(outs)

    def kl(self, dense: bool) -> Tensor:
        inputs, latents, keys = self.inputs, self.row.latents.storage.rows, self.row.keys.storage
        own_keys = _split(self.own_keys, [run.completed for run in self.runs])
        parts = map(self._by_run, (self.q.detach(), inputs.q, inputs.weights, self.pools))
        found = [
            indexer_kl(
                index_q,
                weights,
                own,
                keys.rows[: run.end],
                Teacher(q, latents, self.scale),
                ids_TK=None if dense else pools,
                first=run.first,
                pool=run.pool,
                d_keys_JD=keys.gradient,
            )
            for run, own, q, index_q, weights, pools in zip(self.runs, own_keys, *parts, strict=True)
        ]
        return torch.stack(found).sum()
