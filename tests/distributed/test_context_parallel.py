"""Ranks that share the chunks of a window, against one process: four processes on gloo run every case.

One test starts them, because starting costs more than all the cases; each case is judged by its name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pieces_worker import CONFIG, WORLD, Case

from genoctx.model.parallel.pieces import PARTS
from genoctx_kernels.numerics import accumulator

LIMIT = 1e-10
CUTS: list[tuple[int, ...]] = [(), (20, 43), (3, 12, 13, 22, 30, 41, 52)]
SHARES: dict[int, list[tuple[float, ...] | None]] = {
    1: [None],
    2: [None, (3, 1)],
    4: [None, (5, 1, 0, 2)],
}
MODES = [("off", 0.0), ("sparse", 0.1), ("dense", 0.0), ("off", 0.1)]


def cases() -> list[Case]:
    """Every number of ranks, chunks and way to cut a chunk; objectives, padding and pools take turns."""
    made = []
    for cuts in CUTS:
        for ranks, ways in SHARES.items():
            for shares in ways:
                kl, balance = MODES[len(made) % 4]
                skip = [(0,), (0, 25), (2, 0)][len(made) % 3]
                pool = [4, 8, 2, 1, 4][len(made) % 5]
                made.append(Case(ranks, cuts, shares, balance, kl, skip=skip, kpool=pool))
    return [*made, Case(4, (1,), length=3, kl="sparse", balance=0.1)]  # most pieces are empty


EVEN = [Case(4, tuple(range(n // 8, n, n // 8)), length=n) for n in (64, 128)]
"""Eight even chunks in eight even pieces, at two lengths: for the counters."""

FEW = [
    Case(4, (), length=128, kpool=1),
    Case(2, (), length=128, kpool=1),
    Case(4, (64,), length=128, kpool=1),
]
"""One or two even chunks: what a query sees differs most from one end of a chunk to the other."""

BFLOAT16 = Case(4, tuple(range(16, 128, 16)), length=128, kpool=2, dtype="bfloat16")
"""For the counters: a pooled key is to latents what it is in the GLM preset, a sixteenth."""

SCORED = [Case(4, (20, 43)), Case(4, (20, 43), (5, 1, 0, 2), skip=(0, 25))]


def run(folder: Path) -> None:
    """All work on four ranks; asserts that none of them failed."""
    work = [("equality", case) for case in (*cases(), *EVEN, *FEW, BFLOAT16)]
    work += [("scoring", case) for case in SCORED]
    (folder / "cases.json").write_text(json.dumps([(kind, asdict(case)) for kind, case in work]))
    script = Path(__file__).with_name("pieces_worker.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "\n".join(said)


def found(folder: Path, kind: str, case: Case) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"{kind}.{case.name}.json").read_text())
    return result


def test_ranks_that_share_chunks_equal_one_process(tmp_path: Path) -> None:
    run(tmp_path)
    for case in (*cases(), *EVEN, *FEW):
        result = found(tmp_path, "equality", case)
        assert result["gradient"] <= LIMIT, (case.name, result["where"], result["gradient"])
        assert result["loss"] <= LIMIT, (case.name, result["loss"])
        # a piece is chosen for once: in the forward sweep, or, of the last chunk, in the backward sweep
        rows = PARTS * len(case.skip) * len(case.bounds)
        assert all(scores["calls"] == rows for scores in result["scores"]), case.name
    for case in SCORED:
        result = found(tmp_path, "scoring", case)
        assert result["once"] and result["hidden"] <= 1e-12, case.name
    check_bytes(tmp_path)
    check_scores(tmp_path)
    check_desertion(tmp_path)


def check_bytes(folder: Path) -> None:
    """What KDA sends does not depend on the length; what DSA sends is its latents and a tenth at most."""
    short, long = (found(folder, "equality", case)["sent"] for case in EVEN)
    recurrent = [kind for kind in short[0] if kind.startswith("kda")]
    assert len(recurrent) == 4
    for kind in recurrent:
        assert [rank[kind] for rank in short] == [rank[kind] for rank in long], kind
    heads, width, layers, chunks = CONFIG.linear_num_heads, CONFIG.linear_head_dim, 2, len(EVEN[0].bounds)
    maps, state = short[0]["kda maps"], heads * width * width * 8
    # one map [A | B] a layer and piece forwards (the last chunk has one forward pass, the others two)
    assert maps["given"] == PARTS * 2 * state * layers * (2 * chunks - 1)
    assert short[0]["kda gradients"]["given"] == PARTS * 2 * state * layers * chunks
    for case in (*EVEN, BFLOAT16):
        sent, dtype = found(folder, "equality", case)["sent"], getattr(torch, case.dtype)
        latents = case.length * CONFIG.kv_lora_rank
        given = {kind: sum(rank[kind]["given"] for rank in sent) for kind in sent[0]}
        assert given["latents"] == latents * dtype.itemsize  # once a window: backwards reads what is stored
        if (
            case.length // (PARTS * WORLD * chunks) % case.kpool == 0
        ):  # else ranks have unequal pools: padding
            keys = case.length // case.kpool * CONFIG.index_head_dim
            assert given["pooled keys"] == keys * dtype.itemsize  # in the model's dtype, as they are kept
        assert given["latents"] + given["pooled keys"] <= 1.1 * given["latents"]
        # a rank adds to every other rank's rows: (ranks - 1) / ranks of a reduce-scatter's input
        assert given["latents gradient"] == (WORLD - 1) * latents * accumulator(dtype).itemsize


def check_scores(folder: Path) -> None:
    """Candidate scores of the busiest rank over the even share: a tenth more at most, however few the chunks."""
    for case in (*EVEN, *FEW):
        per_rank = [sum(s[k] for k in ("forward", "last")) for s in found(folder, "equality", case)["scores"]]
        total = sum((t + 1) // case.kpool for t in range(case.length))
        assert sum(per_rank) == total  # nothing is scored twice, over all ranks and both sweeps
        share = max(per_rank) * case.ranks / total
        # with pools of one token a rank's two pieces of an even chunk see as many candidates, to the last one
        assert share <= 1.1 and (share == 1 or case.kpool > 1), (case.name, per_rank)


def check_desertion(folder: Path) -> None:
    *others, faulty = (json.loads((folder / f"deserted.{rank}.json").read_text()) for rank in range(WORLD))
    assert faulty == {"fault": "a fault of one rank"}
    for rank, result in enumerate(others):
        assert f"rank {rank} lost the other ranks of its window while exchanging" in result["message"]
