"""Sharded over 2 and 4 gloo ranks: loss, every gradient and the weights after a step are one process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from genoctx.engine.mesh import Layout
from genoctx.engine.sharded import rounds
from genoctx.errors import ConfigError

WORKER = Path(__file__).with_name("sharding_worker.py")
TWO = ("keep-1-1-float64", "layer-1-1-float64", "keep-1-2-float64", "layer-2-2-float64")
"""keep or layer, cp, ep, dtype."""
MIXED = ("keep-1-1-bfloat16", "layer-1-1-bfloat16")
MADE = ("made-1-1-float32", "made-1-2-float32")
"""A model from nothing: counts the bytes of all tensors that are alive at a time."""
FOUR = ("layer-2-2-float64",)


def start(folder: Path, world: int, cases: tuple[str, ...]) -> dict[str, Any]:
    command = [sys.executable, str(WORKER), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), *cases], stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "\n".join(said)
    return {case: torch.load(folder / f"{case}.pt", weights_only=False) for case in cases}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return start(tmp_path_factory.mktemp("two"), 2, TWO + MIXED + MADE)


def assert_equal(found: dict[str, Any]) -> None:
    one, many = found["one"], found["many"]
    for part in ("nats", "weight", "balance", "indexer_kl"):
        mine, theirs = getattr(one["losses"], part), getattr(many["losses"], part)
        assert abs(mine - theirs) <= 1e-10 * abs(mine), part
    assert one["losses"].targets == many["losses"].targets
    assert one["losses"].balance > 0 and one["losses"].indexer_kl > 0
    assert one["norm"] > 0.05  # clipping takes place
    assert abs(one["norm"] - many["norm"]) <= 1e-10 * one["norm"]
    assert one["weights"].keys() == many["weights"].keys()
    for name, gradient in one["gradients"].items():
        assert (many["gradients"][name] - gradient).abs().max() <= 1e-10 * gradient.abs().max(), name
    for name, weight in one["weights"].items():
        assert (many["weights"][name] - weight).abs().max() <= 1e-10, name


@pytest.mark.parametrize("case", TWO)
def test_two_ranks_are_one_process(two: dict[str, Any], case: str) -> None:
    assert_equal(two[case])


@pytest.mark.parametrize("case", MIXED)
def test_bfloat16_gradients_are_summed_in_float32(two: dict[str, Any], case: str) -> None:
    """Gathered in bfloat16, summed and stepped in float32: what differs is the order of float32 sums."""
    one, many = two[case]["one"], two[case]["many"]
    assert one["losses"].nats == many["losses"].nats
    for name, gradient in one["gradients"].items():
        assert many["gradients"][name].dtype == gradient.dtype == torch.float32
        assert (many["gradients"][name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


def test_four_ranks_are_one_process(tmp_path: Path) -> None:
    """Two windows side by side, each on two ranks, experts over pairs, layer by layer."""
    assert_equal(start(tmp_path, 4, FOUR)[FOUR[0]])


def test_kept_weights_are_gathered_once_however_many_chunks(two: dict[str, Any]) -> None:
    coarse, fine = two["keep-1-1-float64"]["gathers"]
    assert coarse == fine > 0
    coarse, fine = two["layer-1-1-float64"]["gathers"]
    assert fine > coarse > two["keep-1-1-float64"]["gathers"][0]


@pytest.mark.parametrize("case", MADE)
def test_no_tensor_but_one_is_ever_whole_while_a_model_is_made(two: dict[str, Any], case: str) -> None:
    for found in two[case]:
        drawn, read = found["seed"], found["file"]
        assert drawn["all"] > 9 * drawn["largest"] and drawn["parts"] < 0.51 * drawn["all"]
        small = 1024  # indices, counts
        assert drawn["peak"] <= drawn["parts"] + drawn["largest"] + small
        assert read["peak"] <= read["parts"] + read["largest"] / 2 + small  # a rank reads its own rows


def test_every_rank_walks_as_many_chunks() -> None:
    dealt = rounds([10, 3, 10, 10], 2, 4)
    assert dealt == [(3, [0, 2]), (3, [3, None]), (1, [1, None])]


@pytest.mark.parametrize(
    "world, numbers, word",
    [
        (4, {"cp": 3}, "multiple of 3"),
        (4, {"dp": 3}, "3 x 1"),
        (4, {"ep": 3}, "parallel.ep 3"),
        (4, {"ep": 4, "experts": 6}, "6 experts"),
    ],
    ids=["cp", "dp", "ep", "experts"],
)
def test_a_layout_that_does_not_fit_is_refused_with_its_numbers(
    world: int, numbers: dict[str, int], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        Layout.of(world, **numbers)


def test_a_layout_takes_what_cp_leaves() -> None:
    layout = Layout.of(8, cp=2, ep=4, experts=8)
    assert (layout.dp, layout.cp, layout.ep, layout.world) == (4, 2, 4, 8)
