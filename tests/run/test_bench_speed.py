"""Benches beside peers: a figure only for what computes the same."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from genoctx.cli.app import run
from genoctx.errors import CheckFailed, GenoctxError
from genoctx.run import bench_engine, bench_kernels, bench_profile
from genoctx.run.bench_engine import OURS, THEIRS, Side, Turn
from genoctx.run.bench_kernels import Timed, run_kernels


def test_every_op_agrees_with_its_equation() -> None:
    results = run_kernels(64, 2, lambda text: None)
    assert [forms[0].op for forms in results] == ["kda", "mhc site", "short conv", "swiglu", "loss"]
    for forms in results:
        assert forms[0].form == "genoctx"
        for form in forms:
            assert len(form.seconds) == (0 if form.failed else 2)
    installed = {"transformers fallback": "transformers", "fla naive chunk": "fla"}
    for form in results[0][1:]:
        assert bool(form.failed) == (find_spec_quiet(installed[form.form]) is None)


def find_spec_quiet(name: str) -> Any:
    try:
        return find_spec(name)
    except ValueError:  # hidden on purpose by the adapter of another peer
        return "hidden"


@pytest.mark.parametrize("wrong", [lambda x: x**2 + 1e-2, lambda x: x**2 + 0 * x.detach() + 1e-2 * x])
def test_another_computation_gets_no_figure(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its output, or in its gradient alone."""
    forms = [Timed("square", "genoctx", lambda x: x * x), Timed("square", "peer", wrong)]
    ops = [("square", [torch.linspace(0.1, 1, 50)], forms)]
    monkeypatch.setattr(bench_kernels, "_ops", lambda tokens: ops)
    with pytest.raises(CheckFailed, match="square: peer differs from ours"):
        run_kernels(64, 1, lambda text: None)
    assert forms[0].seconds == []


def side(name: str, nats: float, norm: float, failed: str = "") -> Side:
    return Side(name, 100, [] if failed else [Turn(1.0, nats, norm, 1)], failed)


def test_a_step_with_another_loss_or_gradient_gets_no_figure() -> None:
    agree = bench_engine._require_agreement
    agree(side(OURS, 1.3, 2.0), side(THEIRS, 1.30005, 2.001))
    agree(side(OURS, 1.3, 2.0), side(THEIRS, 0, 0, failed="not installed"))
    for nats, norm in ((1.3002, 2.0), (1.3, 2.003)):
        with pytest.raises(CheckFailed, match="the two disagree at 100 tokens"):
            agree(side(OURS, 1.3, 2.0), side(THEIRS, nats, norm))
    with pytest.raises(GenoctxError, match="our own step failed: out of luck"):
        agree(side(OURS, 0, 0, failed="out of luck"), side(THEIRS, 1.3, 2.0))


def test_bench_engine_prints_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contexts", "600", "--preset", "nano", "--rounds", "2", "--threads", "1", "--chunk", "256"]
    assert run(["bench", "engine", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ours, theirs = found["sides"]
    assert (ours["name"], theirs["name"]) == (OURS, THEIRS)
    assert [turn["nats"] for turn in ours["turns"]] == [ours["turns"][0]["nats"]] * 2
    assert all(turn["seconds"] > 0 and turn["grad_norm"] > 0 for turn in ours["turns"])
    if find_spec_quiet("transformers") is None:
        assert theirs["turns"] == [] and "not installed" in theirs["failed"]
    else:
        assert len(theirs["turns"]) == 2


def test_streaming_is_measured_beside_the_whole_window(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contexts", "500", "--preset", "micro", "--rounds", "1", "--threads", "1", "--chunk", "128"]
    assert run(["bench", "engine", "--against", "whole", *options, "--json"]) == 0
    ours, whole = json.loads(capsys.readouterr().out)["sides"]
    assert (ours["name"], whole["name"], whole["failed"]) == (OURS, bench_engine.WHOLE, "")
    assert whole["turns"][0]["grad_norm"] == pytest.approx(ours["turns"][0]["grad_norm"], rel=1e-4)


def test_profile_accounts_for_all_of_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contexts", "700", "--preset", "micro", "--threads", "1", "--chunk", "256"]
    assert run(["bench", "profile", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (step,) = found["steps"]
    assert sum(step["shares"].values()) == pytest.approx(1)
    kinds = {kind for kind, _ in bench_profile._KINDS} | {bench_profile.REST}
    assert kinds == set(step["shares"])
    assert kinds == set(step["flops"])
    # each of the 303,146 weights but the embedding's meets a token once forward, twice again in the other sweep
    assert sum(step["flops"].values()) > 700 * 2 * 3 * 100_000
    no_products = {kind for kind, flops in step["flops"].items() if not flops}
    assert no_products == {"optimizer", "short convolution", bench_profile.REST}
    assert found["bytes_per_s"] > 0 and all(rate > 0 for rate in found["flops_per_s"].values())


def test_products_are_counted_as_torch_counts_them() -> None:
    """Every form that torch has of a product; oneDNN's, which torch does not count, by hand."""
    m, b = torch.randn(30, 20), torch.randn(3, 5, 7)

    def products() -> None:
        m @ m.T, m @ m[0], F.linear(m, m[:4], m[0, :4]), torch.einsum("bij,bkj->bik", b, b)
        torch.baddbmm(torch.zeros(3, 5, 5), b, b.mT), torch.mm(m, m.T, out=torch.empty(30, 30))

    with FlopCounterMode(display=False) as counter:
        products()
    with bench_profile._Products() as found:
        products()
    # torch does not count a matrix by a vector
    assert found.flops == {bench_profile.PRODUCTS: counter.get_total_flops() + 2 * 30 * 20}
    assert bench_profile.product_flops("mkldnn::_linear_pointwise", [[6, 50, 20], [4, 20], []]) == 48_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: make test-gpu measures it")
def test_without_a_gpu_there_is_no_gpu_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "gpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "torch sees no GPU" in captured.err


@pytest.mark.parametrize(
    "args", [("engine", "--size", "1k"), ("kernels", "--preset", "nano"), ("io", "--contexts", "8k")]
)
def test_options_of_another_bench_are_refused(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *args]) == 2
    assert f"bench {args[0]} has no {args[1]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [("engine", "some.fa"), ("engine", "--rounds", "0"), ("kernels", "--contexts", "100")]
)
def test_nothing_to_measure_is_refused(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "hint: " in captured.err
