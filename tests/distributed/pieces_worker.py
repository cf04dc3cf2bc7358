"""One of four ranks that run the cases of test_context_parallel.py: ``pieces_worker.py FOLDER RANK``.

Ranks meet through a file in FOLDER. What a group of ranks found is written there by its first rank, as
``NAME.json``; the test reads it and judges.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import genoctx.model.dsa as dsa
from genoctx.engine.batch import Batch, Coefficients, Denominators
from genoctx.engine.group import TorchGroup
from genoctx.engine.stream import Bounds, Losses, train_window, walk
from genoctx.errors import GenoctxError
from genoctx.model.block import Objectives
from genoctx.model.config import DENSE, DSA, KDA, SPARSE, ModelConfig
from genoctx.model.hybrid import Hybrid, build

WORLD = 4
CONFIG = ModelConfig(
    vocab_size=6,
    hidden_size=8,
    num_hidden_layers=3,
    layer_types=(KDA, DSA, KDA),
    mlp_layer_types=(DENSE, SPARSE, SPARSE),
    intermediate_size=8,
    moe_intermediate_size=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    hc_mult=2,
    hc_sinkhorn_iters=3,
    linear_num_heads=2,
    linear_head_dim=4,
    linear_gate_low_rank=3,
    num_attention_heads=2,
    q_lora_rank=4,
    kv_lora_rank=32,
    qk_nope_head_dim=4,
    v_head_dim=3,
    index_n_heads=2,
    index_head_dim=4,
    index_topk=8,
    index_kpool=4,
    pad_token_id=None,
)


@dataclass(frozen=True)
class Case:
    """One window, how it is cut, and what is trained."""

    ranks: int
    cuts: tuple[int, ...]
    """Inner borders of the chunks."""
    shares: tuple[float, ...] | None = None
    balance: float = 0.0
    kl: str = "off"
    length: int = 61
    skip: tuple[int, ...] = (0,)
    kpool: int = 4
    dtype: str = "float64"

    @property
    def name(self) -> str:
        cut = "even" if self.shares is None else "-".join(f"{s:g}" for s in self.shares)
        pad = "-".join(map(str, self.skip))
        rest = f"{self.kl}_balance{self.balance:g}_pad{pad}_pool{self.kpool}_{self.length}_{self.dtype}"
        return f"ranks{self.ranks}_chunks{len(self.cuts) + 1}_{cut}_{rest}"

    @property
    def bounds(self) -> Bounds:
        edges = [0, *self.cuts, self.length]
        return list(pairwise(edges))

    @property
    def weights(self) -> Coefficients:
        return Coefficients(self.balance, 0.3 if self.kl != "off" else 0.0)

    def batch(self) -> Batch:
        generator = torch.Generator().manual_seed(self.length)
        tokens = torch.randint(0, 4, (len(self.skip), self.length), generator=generator)
        targets = torch.roll(tokens, -1, 1)
        targets[:, -1] = -100
        targets[:, 20:30] = -100
        for row, pad in enumerate(self.skip):
            targets[row, :pad] = -100
        share = torch.rand(tokens.shape, generator=generator).clamp_min(0.1)
        return Batch(tokens, targets, ("w",) * len(self.skip), self.skip, share)


def per(case: Case) -> Denominators:
    return Denominators.of([case.batch()], case.kpool)


@cache
def model(balance: bool, kl: str, kpool: int, dtype: str) -> Hybrid:
    """Every parameter random: fresh norms, gates and biases would hide mistakes."""
    config = replace(CONFIG, index_kpool=kpool, index_topk=2 * kpool)
    made = build(config, dtype=getattr(torch, dtype), objectives=Objectives(balance, kl))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in made.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(p + 0.3 * noise if "norm" in name or p.ndim < 2 else 0.4 * noise)
    return made


class Scored:
    """Counts the candidate scores of the indexer, sweep by sweep; in place of ``select_pools``."""

    def __init__(self) -> None:
        self.real = dsa.select_pools
        self.sweep, self.scores, self.calls = "forward", {"forward": 0, "last": 0}, 0

    def __call__(self, q: Any, w: Any, keys: Any, first: int, pool: int, top: int) -> torch.Tensor:
        self.calls += 1
        sweep = "last" if torch.is_grad_enabled() else "forward"
        self.scores[sweep] += sum((first + t + 1) // pool for t in range(len(q)))
        return self.real(q, w, keys, first, pool, top)


def train(case: Case, group: TorchGroup | None) -> tuple[Losses, dict[str, torch.Tensor]]:
    net = model(case.balance > 0, case.kl, case.kpool, case.dtype)
    for p in net.parameters():
        p.grad = None
    losses = train_window(net, case.batch(), case.bounds, case.weights, per(case), group=group)
    return losses, {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


@cache
def alone(case: Case) -> tuple[Losses, dict[str, torch.Tensor]]:
    return train(case, None)


def worst(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Largest relative difference of a gradient and where; what is zero in theory is compared with 1e-14."""
    if found.keys() != right.keys():
        return float("inf"), f"gradients of other parameters: {sorted(found.keys() ^ right.keys())}"
    noise = 1e-14 * max(g.abs().max().item() for g in right.values())

    def error(name: str) -> float:
        size = right[name].abs().max().item()
        return (found[name] - right[name]).abs().max().item() / size if size > noise else 0.0

    return max((error(name), name) for name in right)


def equality(case: Case, group: TorchGroup) -> dict[str, Any]:
    """The case on a group's ranks, summed over them, and as one chunk on one process: plain backpropagation."""
    scored = dsa.select_pools = Scored()  # type: ignore[assignment]
    losses, gradients = train(case, group)
    dsa.select_pools = scored.real
    names: list[Any] = [None] * group.size
    dist.all_gather_object(names, sorted(gradients), group=group.process_group)
    if any(n != names[0] for n in names):
        return {"gradient": float("inf"), "where": f"ranks have gradients of other parameters: {names}"}
    sums = torch.tensor(
        [losses.nats, losses.targets, losses.weight, losses.balance, losses.indexer_kl], dtype=torch.float64
    )
    everything = torch.cat([sums, *(gradients[name].flatten() for name in sorted(gradients))])
    dist.all_reduce(everything, group=group.process_group)
    shapes = [len(sums), *(gradients[name].numel() for name in sorted(gradients))]
    sums, *flat = everything.split(shapes)
    found = {n: g.view_as(gradients[n]) for n, g in zip(sorted(gradients), flat, strict=True)}
    scores: list[Any] = [None] * group.size
    dist.all_gather_object(scores, {**scored.scores, "calls": scored.calls}, group=group.process_group)
    bytes_: list[Any] = [None] * group.size
    dist.all_gather_object(bytes_, {k: asdict(s) for k, s in group.sent.items()}, group=group.process_group)
    if group.rank:
        return {}
    right, gradient = alone(replace(case, ranks=1, shares=None, cuts=()))
    error, where = worst(found, gradient)
    wanted = [right.nats, right.targets, right.weight, right.balance, right.indexer_kl]
    off = max(abs(a - b) / abs(b) if b else abs(a) for a, b in zip(sums.tolist(), wanted, strict=True))
    return {
        "gradient": error,
        "where": where,
        "loss": off,
        "parameters": len(found),
        "scores": scores,
        "sent": bytes_,
        "window": [case.length, len(case.bounds), group.size],
    }


@torch.no_grad()
def scoring(case: Case, group: TorchGroup) -> dict[str, Any]:
    """Final hidden states of one pass, piece by piece, against one process."""
    net, batch = model(case.balance > 0, case.kl, case.kpool, case.dtype), case.batch()
    right = torch.cat([hidden for *_, hidden in walk(net, batch, case.bounds)], 1)
    error, tokens = 0.0, torch.zeros(case.length)
    for start, end, hidden in walk(net, batch, case.bounds, group):
        if end > start:
            error = max(error, (hidden - right[:, start:end]).abs().max().item())
        tokens[start:end] += 1
    totals = torch.cat((tokens, torch.tensor([error])))
    dist.all_reduce(totals, group=group.process_group)
    return {"hidden": totals[-1].item(), "once": bool((totals[:-1] == 1).all())}


def deserted(group: TorchGroup) -> dict[str, Any]:
    """The last rank fails in the middle of a window; the others must not wait for ever."""
    case = Case(group.size, (20, 40))

    def fail(tokens: int, sweep: str) -> None:
        raise ValueError("a fault of one rank")

    try:
        on_chunk = fail if group.rank == group.size - 1 else (lambda tokens, sweep: None)
        net = model(False, "off", case.kpool, case.dtype)
        train_window(net, case.batch(), case.bounds, case.weights, per(case), on_chunk, group=group)
    except GenoctxError as error:
        return {"message": error.message}
    except ValueError as error:
        return {"fault": str(error)}
    return {"message": "nothing happened"}


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    mine = {
        size: [dist.new_group(list(range(s, s + size))) for s in range(0, WORLD, size)][rank // size]
        for size in (1, 2, 4)
    }
    brief = dist.new_group(list(range(WORLD)), timeout=timedelta(seconds=6))
    for number, (work, case) in enumerate(json.loads((folder / "cases.json").read_text())):
        made = Case(**{k: tuple(v) if isinstance(v, list) else v for k, v in case.items()})
        # groups of one size share the work: every group takes the next case
        if number % (WORLD // made.ranks) != rank // made.ranks:
            continue
        group = TorchGroup(mine[made.ranks], made.shares)
        found = {"equality": equality, "scoring": scoring}[work](made, group)
        if group.rank == 0:
            (folder / f"{work}.{made.name}.json").write_text(json.dumps(found))
    dist.barrier()
    (folder / f"deserted.{rank}.json").write_text(json.dumps(deserted(TorchGroup(brief))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
