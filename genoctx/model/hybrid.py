"""The whole text model: embedding, layers, collapse of the streams, LM head weight.

Letters: B rows, T tokens, N streams, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from genoctx.model.adapter import Lora, pair_of
from genoctx.model.block import LM_ONLY, Layer, Objectives
from genoctx.model.carry import Allocate, Aux, Carry, Choices, Chunk, LayerCarry
from genoctx.model.config import ModelConfig
from genoctx.model.dsa import SparseAttention
from genoctx.model.kda import KimiDeltaAttention
from genoctx.model.norms import RMSNorm
from genoctx.model.parallel.pieces import Pieces

FP32_HELD = ("A_log", "dt_bias", "_base", "_scale", "e_score_correction_bias")
"""Parameters the hub stores, and we keep, in float32 whatever the model's dtype."""


class Output(NamedTuple):
    """What the model says about one chunk."""

    hidden: Tensor
    """Final normed hidden states [B, T, D]; ``Hybrid.head`` makes factors of logits of them."""
    carry: Carry
    choices: tuple[Choices | None, ...]
    aux: tuple[Aux, ...]


class Hybrid(nn.Module):
    """glm5_next text model. ``forward(tokens, carry, ...)`` walks one chunk through all layers."""

    def __init__(self, config: ModelConfig, objectives: Objectives = LM_ONLY) -> None:
        super().__init__()
        self.config = config
        self.lora: Lora | None = None
        """The adapters beside the weights, where there are some (genoctx/model/lora.py)."""
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(Layer(config, i, objectives) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def head(self, hidden_MD: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of the logits, [M, D] and [V, D]; an adapter of the head makes D wider by its rank."""
        weight, pair = self.lm_head.weight, pair_of(self.lm_head, hidden_MD.dtype)
        if pair is None:
            return hidden_MD, weight
        return torch.cat((hidden_MD, hidden_MD @ pair.a.T), -1), torch.cat((weight, pair.b), -1)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    def initial_carry(self, batch: int, capacity: int, allocate: Allocate | None = None) -> Carry:
        """The carry before the first token; DSA prefixes get room for ``capacity`` tokens a row.

        Their memory comes from ``allocate``; without, it is where the weights are.
        """
        carries: list[LayerCarry] = []
        for layer in self.layers:
            mixer = layer.self_attn
            if isinstance(mixer, SparseAttention):
                carries.append(mixer.initial_carry(batch, capacity, allocate))
            else:
                assert isinstance(mixer, KimiDeltaAttention)
                carries.append(mixer.initial_carry(batch))
        return tuple(carries)

    def forward(
        self,
        tokens_BT: Tensor,
        carry: Carry,
        *,
        skip: Sequence[int] | None = None,
        choices: Sequence[Choices | None] | None = None,
        pieces: Pieces | None = None,
    ) -> Output:
        """One chunk of tokens (int64 [B, T]) continuing from ``carry``.

        ``skip`` counts the left-padding tokens of this chunk per row; ``choices`` replays recorded
        selections, one entry per layer. With ``pieces``, ``tokens_BT`` are this rank's pieces of the chunk
        (T >= 0) and so is what comes out, but for the carry, which is the whole chunk's on every rank.
        """
        x = self.embed_tokens(tokens_BT).unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1).contiguous()
        chunk = Chunk(x, tuple(skip) if skip else (0,) * len(tokens_BT), pieces=pieces)
        carries, made, aux = [], [], []
        for i, layer in enumerate(self.layers):
            given = choices[i] if choices else None
            chunk, next_carry = layer(Chunk(chunk.x, chunk.skip, given, pieces=pieces), carry[i])
            carries.append(next_carry)
            made.append(chunk.choices)
            aux.append(chunk.aux)
        # unweighted mean over streams, then the norm (spec section 2.1)
        hidden = self.norm(chunk.x.mean(2))
        return Output(hidden, tuple(carries), tuple(made), tuple(aux))


def build(
    config: ModelConfig,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    objectives: Objectives = LM_ONLY,
    seed: int | None = 0,
) -> Hybrid:
    """A model with freshly drawn weights (spec 2.12); ``seed=None`` leaves them undefined for a loader."""
    with torch.device("meta"):
        model = Hybrid(config, objectives)
    for name, p in model.named_parameters():
        if not name.endswith(FP32_HELD) or dtype == torch.float64:
            p.data = p.data.to(dtype)
    if torch.device(device).type == "meta":
        return model
    model.to_empty(device=device)
    if seed is not None:
        initialise(model, seed)
    return model


def _draw_dt_bias(size: int, generator: torch.Generator) -> Tensor:
    """softplus^-1 of dt, log-uniform in [1e-3, 1e-1] (spec 2.12)."""
    dt = torch.exp(torch.rand(size, generator=generator) * math.log(100) + math.log(1e-3))
    return dt + torch.log(-torch.expm1(-dt))


def drawn(
    config: ModelConfig, shapes: Iterable[tuple[str, Sequence[int]]], seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Fresh weights by name, float32 on the CPU, one after the other from one seeded generator.

    ``shapes`` of all parameters in the model's order: what is drawn depends on what was drawn before.
    """
    generator = torch.Generator().manual_seed(seed)
    std, pad = config.initializer_range, config.pad_token_id
    for name, shape in shapes:
        if name.endswith(("norm.weight", "layernorm.weight", "_scale", "compress_gate")):
            value = torch.ones(*shape)
        elif name.endswith(("bias", "_base", "A_log", "_ape")) and not name.endswith("dt_bias"):
            value = torch.zeros(*shape)
        elif name.endswith("dt_bias"):
            value = _draw_dt_bias(math.prod(shape), generator)
        elif name.endswith("conv1d.weight"):
            value = torch.randn(*shape, generator=generator).mul_(shape[-1] ** -0.5)
        else:
            value = torch.randn(*shape, generator=generator).mul_(std)
        if name == "embed_tokens.weight" and pad is not None:
            value[pad].zero_()
        yield name, value
        del value  # one at a time: they may be as large as a device's memory


@torch.no_grad()
def initialise(model: Hybrid, seed: int) -> None:
    """Draw all weights, whatever device they live on."""
    shapes = [(name, p.shape) for name, p in model.named_parameters()]
    for (_, value), p in zip(drawn(model.config, shapes, seed), model.parameters(), strict=True):
        p.copy_(value)
