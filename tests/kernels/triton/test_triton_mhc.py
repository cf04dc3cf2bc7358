"""Both halves of an mHC site in Triton's interpreter: all outputs, all gradients, ragged tiles."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound
from torch import Tensor

from genoctx_kernels.mhc import mhc_mix, mhc_read, triton_maps, triton_mix, triton_streams
from genoctx_kernels.mhc.reference import mhc_mix_reference, mhc_read_reference

SITE = {"iters": 20, "hc_eps": 1e-6, "rms_eps": 1e-5}
MAPS, STREAMS, MIX = (f"genoctx_kernels.mhc.triton_{name}" for name in ("maps", "streams", "mix"))
TOKENS, INNER = triton_streams.TOKENS, triton_streams.INNER
ROWS, COLUMNS = triton_streams.ROWS, triton_streams.COLUMNS
MAP_TOKENS, D_STREAMS_WARPS = triton_maps.TOKENS, triton_streams.D_STREAMS_WARPS

pytestmark = pytest.mark.usefixtures("on_triton")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of tokens and of columns at these sizes."""
    for module in (triton_streams, triton_mix):
        monkeypatch.setattr(module, "ROWS", 32)
        monkeypatch.setattr(module, "COLUMNS", 16)
    monkeypatch.setattr(triton_streams, "INNER", 16)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def site(tokens: int, n: int = 4, hidden: int = 20) -> list[Tensor]:
    """fn of a size that gives maps of size one, as in a model."""
    maps, width = n * (n + 2), n * hidden
    return [
        draw(tokens, n, hidden),
        draw(maps, width, seed=7) / width**0.5,
        draw(maps, seed=2),
        draw(3, seed=3),
    ]


def mixed(tokens: int, n: int = 4, hidden: int = 20) -> list[Tensor]:
    return [
        draw(tokens, n, hidden),
        draw(tokens, hidden, seed=1),
        draw(tokens, n, seed=2),
        draw(tokens, n, n, seed=3),
    ]


@pytest.mark.parametrize("tokens,n", [(1, 4), (63, 4), (100, 4), (33, 1), (33, 2), (33, 3)])
def test_read(tokens: int, n: int) -> None:
    assert_error_bound(
        partial(mhc_read, **SITE), partial(mhc_read_reference, **SITE), site(tokens, n), torch.float32
    )


def test_read_in_bfloat16() -> None:
    assert_error_bound(
        partial(mhc_read, **SITE), partial(mhc_read_reference, **SITE), site(63), torch.bfloat16
    )


def test_maps_are_the_same_whatever_follows() -> None:
    """Tokens are independent: fewer of them change no bit."""
    inputs = [x.float() for x in site(40)]
    whole = mhc_read(*inputs, **SITE)
    part = mhc_read(inputs[0][:35], *inputs[1:], **SITE)
    assert all(torch.equal(a[:35], b) for a, b in zip(whole, part, strict=True))


def test_columns_of_c_sum_to_one() -> None:
    comb = mhc_read(*(x.float() for x in site(33)), **SITE)[2]
    # the last normalisation divides by (sum + hc_eps)
    assert torch.allclose(comb.sum(1), torch.ones(33, 4), atol=3e-6)


@pytest.mark.parametrize("tokens,n", [(1, 4), (63, 4), (100, 4), (33, 1), (33, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mix(tokens: int, n: int, dtype: torch.dtype) -> None:
    assert_error_bound(mhc_mix, mhc_mix_reference, mixed(tokens, n), dtype)


def test_mix_rounds_its_maps_to_the_dtype_of_the_streams() -> None:
    """A quarter of a step above a bfloat16 is that bfloat16, rounded (as GPUs do) or cut (the interpreter)."""
    x, y, post, comb = (t.bfloat16() for t in mixed(33))
    above = [m.float() * (1 + 2**-10) for m in (post, comb)]
    assert torch.equal(mhc_mix(x, y, *above), mhc_mix(x, y, post.float(), comb.float()))


def test_fits_the_gpus() -> None:
    n, maps, hidden = 4, 24, 4096
    small = {"tokens": "i32"}
    shape = {"N": n, "D": hidden}
    project = {"Z": maps, "ZP": 32, "F": n * hidden, "BT": TOKENS, "BK": INNER}
    flat = {"BT": ROWS, "BD": COLUMNS, **shape}
    sinkhorn = {"ITERS": 20, "N": n, "NP": n, "BT": MAP_TOKENS}

    def types(names: str, dtype: str, **others: str) -> dict[str, str]:
        """Pointers of ``dtype`` for x, y, fn and what has their shape; float32 for the maps."""
        own = {"x", "y", "fn", "d_x", "d_y", "d_out", "out"}
        return {f"{k}_ptr": f"*{dtype if k in own else 'fp32'}" for k in names.split()} | small | others

    inputs, outputs = "raw inv base scale", "d_a d_raw along"
    eps = {"eps": "fp32"}
    variants = [
        Variant(f"{MAPS}:maps_kernel", types(f"{inputs} pre post comb", "fp32", **eps), sinkhorn),
        Variant(
            f"{MAPS}:d_maps_kernel",
            types(f"{inputs} d_pre d_post d_comb {outputs}", "fp32", width="i32:16", **eps),
            sinkhorn,
        ),
    ]
    tile = {"Z": maps, "ZP": 32, "BT": TOKENS, "BD": INNER, **shape}
    for dtype in ("bf16", "fp32"):
        variants += [
            Variant(f"{STREAMS}:{kernel}_kernel", signature, constants, warps, label=dtype)
            for kernel, signature, constants, warps in (
                ("project", types("x fn raw inv", dtype, **eps), project, 4),
                ("collapse", types("x pre out", dtype), flat, 4),
                ("d_pre", types("x d_x d_pre", dtype), {**flat, "NP": n}, 4),
                ("d_streams", types("x fn d_raw along pre d_x out", dtype), tile, D_STREAMS_WARPS),
                ("d_fn", types("x d_raw d_fn", dtype), project, 4),
            )
        ]
        names = "x y post comb"
        gradients = types(f"{names} d_out d_x d_y d_post d_comb", dtype)
        variants += [
            Variant(f"{MIX}:mix_kernel", types(f"{names} out", dtype), flat, label=dtype),
            Variant(f"{MIX}:d_mix_kernel", gradients, {**flat, "NP": 32}, label=dtype),
        ]
    assert_fits(variants)
