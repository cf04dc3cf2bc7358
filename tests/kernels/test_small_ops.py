"""Convolution, hyper-connections, SwiGLU and loss against their references."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from compare import assert_equal_in_float64, assert_error_bound
from torch import Tensor

from genoctx_kernels.conv import short_conv
from genoctx_kernels.conv.reference import short_conv_reference
from genoctx_kernels.loss import linear_cross_entropy, score_tokens
from genoctx_kernels.loss import op as loss_op
from genoctx_kernels.loss.reference import linear_cross_entropy_reference
from genoctx_kernels.mhc import mhc_mix, mhc_read
from genoctx_kernels.mhc.reference import mhc_mix_reference, mhc_read_reference, sinkhorn_reference
from genoctx_kernels.mhc.sinkhorn import sinkhorn, sinkhorn_backward
from genoctx_kernels.swiglu import clamped_swiglu
from genoctx_kernels.swiglu.reference import clamped_swiglu_reference

SITE = {"iters": 20, "hc_eps": 1e-6, "rms_eps": 1e-5}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conv_inputs(tokens: int) -> list[Tensor]:
    return [draw(2, tokens, 5), draw(5, 4, seed=1), draw(2, 3, 5, seed=2)]


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9, 63])
def test_conv(tokens: int) -> None:
    assert_equal_in_float64(lambda *x: short_conv(*x)[0], short_conv_reference, conv_inputs(tokens))


def test_conv_in_bfloat16() -> None:
    assert_error_bound(lambda *x: short_conv(*x)[0], short_conv_reference, conv_inputs(63), torch.bfloat16)


@pytest.mark.parametrize("cut", [1, 2, 3, 8])
def test_conv_tail_continues_across_a_cut(cut: int) -> None:
    x, w, tail = conv_inputs(9)
    whole, whole_tail = short_conv(x, w, tail)
    first, middle = short_conv(x[:, :cut], w, tail)
    second, end = short_conv(x[:, cut:], w, middle)
    assert (torch.cat((first, second), 1) - whole).abs().max() < 1e-14  # vector lanes round differently
    assert torch.equal(end, whole_tail)
    assert torch.equal(whole_tail, x[:, -3:])  # raw tokens, before taps and SiLU


def site_inputs(n: int = 4, hidden: int = 6, tokens: int = 7) -> list[Tensor]:
    maps = n * (n + 2)
    return [draw(tokens, n, hidden), draw(maps, n * hidden, seed=1), draw(maps, seed=2), draw(3, seed=3)]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_mhc_read(n: int) -> None:
    assert_equal_in_float64(
        lambda *x: mhc_read(*x, **SITE), lambda *x: mhc_read_reference(*x, **SITE), site_inputs(n)
    )


def test_mhc_mix() -> None:
    assert_equal_in_float64(
        mhc_mix, mhc_mix_reference, [draw(7, 4, 6), draw(7, 6), draw(7, 4), draw(7, 4, 4)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mhc_error_bound(dtype: torch.dtype) -> None:
    assert_error_bound(
        lambda *x: mhc_read(*x, **SITE),
        lambda *x: mhc_read_reference(*x, **SITE),
        site_inputs(4, 16, 63),
        dtype,
    )


@pytest.mark.parametrize("iters", [1, 2, 20])
@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0])
def test_sinkhorn_and_its_way_back(iters: int, spread: float) -> None:
    """Flat maps, and maps so peaked that most of a softmax is far below hc_eps."""

    class Columns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            soft = logits.permute(1, 2, 0).contiguous().softmax(1)
            y, totals = sinkhorn(soft, iters, 1e-6)
            ctx.save_for_backward(soft, y, totals)
            return y.permute(2, 0, 1)

        @staticmethod
        def backward(ctx, d_c: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            soft, y, totals = ctx.saved_tensors
            y = y.clone()  # the way back uses it up
            return sinkhorn_backward(d_c.permute(1, 2, 0) * y, y, totals, soft, 1e-6).permute(2, 0, 1)

    def reference(logits: Tensor) -> Tensor:
        return sinkhorn_reference(logits, iters, 1e-6)

    logits = [spread * draw(50, 4, 4)]
    assert_equal_in_float64(Columns.apply, reference, logits)
    assert_error_bound(Columns.apply, reference, logits, torch.float32)


def test_a_site_without_tokens() -> None:
    """What a rank with an empty piece of a chunk computes."""
    x, fn, base, scale = (t.requires_grad_() for t in site_inputs(tokens=0))
    out = mhc_mix(x, *mhc_read(x, fn, base, scale, **SITE))
    gradients = torch.autograd.grad(out.sum(), (x, fn, base, scale))
    assert out.shape == x.shape and all(not g.any() for g in gradients)


def test_sinkhorn_ends_with_columns_summing_to_one() -> None:
    _, _, comb = mhc_read(*site_inputs(), **SITE)
    # the last normalisation divides by (sum + hc_eps)
    assert torch.allclose(comb.sum(1), torch.ones(7, 4).double(), atol=3e-6)


def test_swiglu_with_active_clamps() -> None:
    gate_up = 6 * draw(50, 8)
    limit = 4.0
    assert (gate_up.abs() > limit).any()
    assert_equal_in_float64(
        lambda x: clamped_swiglu(x, limit), lambda x: clamped_swiglu_reference(x, limit), [gate_up]
    )


TARGETS = torch.tensor([1, -100, 3, 0, 2, -1, 8])


@pytest.mark.parametrize("tile_bytes", [1, 32 << 20])
def test_loss(tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_op, "TILE_BYTES", tile_bytes)
    monkeypatch.setattr(loss_op, "_tile_tokens", lambda v: 2 if tile_bytes == 1 else 1000)
    for share in (None, torch.tensor([0.1, 1.0, 0.0, 0.1, 1.0, 0.5, 0.7])):
        assert_equal_in_float64(
            lambda h, w, share=share: linear_cross_entropy(h, w, TARGETS, share),
            lambda h, w, share=share: linear_cross_entropy_reference(h, w, TARGETS, share),
            [draw(7, 6), draw(9, 6, seed=1)],
        )


def test_scores_are_the_loss_and_its_renormalisation() -> None:
    h, w = draw(7, 6), draw(9, 6, seed=1)
    subset = torch.tensor([0, 1, 2, 3, 8])
    nats = score_tokens(h, w, TARGETS, subset)
    logits = h @ w.T
    for t, target in enumerate(TARGETS.tolist()):
        if target < 0:
            assert nats.full[t] == 0 and nats.subset[t] == 0
            continue
        full = -logits[t].log_softmax(-1)[target]
        part = -logits[t, subset].log_softmax(-1)[subset.tolist().index(target)]
        assert abs(nats.full[t, 0] - full) < 1e-12 and abs(nats.subset[t, 0] - part) < 1e-12
    assert abs(nats.full.sum() - linear_cross_entropy(h, w, TARGETS)) < 1e-12


def test_the_nats_of_a_word_are_those_of_its_letters_by_the_chain_rule() -> None:
    """Trinucleotides on shuffled ids, against conditional probabilities summed word by word."""
    words = ["".join(letters) for letters in product("ACGT", repeat=3)]
    ids = torch.randperm(70, generator=torch.Generator().manual_seed(2))[: len(words)]
    targets = torch.tensor([ids[words.index(w)] for w in ("AAA", "GTC", "TTT", "CAG")] + [-100])
    h, w = draw(5, 6), draw(70, 6, seed=1)
    nats = score_tokens(h, w, targets, ids, letters=3)
    for t, target in enumerate(["AAA", "GTC", "TTT", "CAG"]):
        weight = (h[t] @ w.T).softmax(-1)
        mass = {word: float(weight[ids[i]]) for i, word in enumerate(words)}
        begins = [sum(m for word, m in mass.items() if word.startswith(target[:n])) for n in range(4)]
        expected = [-math.log(begins[n + 1] / begins[n]) for n in range(3)]
        assert torch.allclose(nats.subset[t], torch.tensor(expected, dtype=torch.float64), atol=1e-12)
        expected[0] -= math.log(begins[0])  # the mass outside the words is lost at the first letter
        assert torch.allclose(nats.full[t], torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    assert not nats.full[4].any() and nats.full.shape == nats.subset.shape == (5, 3)
    assert abs(nats.full.sum() - linear_cross_entropy(h, w, targets)) < 1e-12
