"""The passes of an mHC read over the streams: projection with its rms, collapse, and their gradients.

    raw = fn . vec X    inv = (mean (vec X)^2 + eps)^-1/2    x = sum_s pre_s X_s
    d_pre_s = d_x . X_s    d_fn = d_raw^T vec X    d_X = d_raw fn + along X + pre d_x

``along`` is explained in triton_maps.py.

Letters: T tokens, N = n streams, D hidden, F = N D, Z = N (N + 2) maps, ZP the power of two >= 16 holding Z.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from genoctx_kernels.triton_product import dot

TOKENS, INNER = 32, 64
"""Tile of the products: tokens, and steps along F (projection) or columns of F (its gradients)."""
D_STREAMS_WARPS = 8  # with 4 its product spills
ROWS, COLUMNS = 4, 512
"""Tile of the passes without products: tokens and hidden columns."""


@triton.jit
def load_stream(ptr, t, s, d, there, N: tl.constexpr, D: tl.constexpr):
    """Stream ``s`` of tokens ``t`` at columns ``d`` in float32: [len(t), len(d)]."""
    at = ptr + (t * N + s)[:, None] * D + d[None, :]
    return tl.load(at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _load_fn(fn_ptr, z, f, Z: tl.constexpr, F: tl.constexpr):
    """Rows ``z`` (a column vector) and columns ``f`` (a row vector) of fn, or the transpose."""
    return tl.load(fn_ptr + z * F + f, mask=(z < Z) & (f < F), other=0.0)


@triton.jit(do_not_specialize=["tokens"])
def project_kernel(
    x_ptr, fn_ptr, raw_ptr, inv_ptr, tokens, eps,
    Z: tl.constexpr, ZP: tl.constexpr, F: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """raw [T, Z] and inv [T] of a tile of tokens."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    there = t < tokens
    z = tl.arange(0, ZP)
    raw = tl.zeros([BT, ZP], tl.float32)
    square = tl.zeros([BT], tl.float32)
    for start in range(0, F, BK):
        f = start + tl.arange(0, BK)
        x = tl.load(x_ptr + t[:, None] * F + f[None, :], mask=there[:, None] & (f < F)[None, :], other=0.0)
        raw = dot(x, _load_fn(fn_ptr, z[None, :], f[:, None], Z, F), raw)
        square += tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
    inv = tl.div_rn(tl.full([BT], 1.0, tl.float32), tl.sqrt_rn(square / F + eps))
    tl.store(raw_ptr + t[:, None] * Z + z[None, :], raw, mask=there[:, None] & (z < Z)[None, :])
    tl.store(inv_ptr + t, inv, mask=there)


@triton.jit(do_not_specialize=["tokens"])
def collapse_kernel(
    x_ptr, pre_ptr, out_ptr, tokens,
    N: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """x [T, D] = sum_s pre_s X_s."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    there = (t < tokens)[:, None] & (d < D)[None, :]
    out = tl.zeros([BT, BD], tl.float32)
    for s in tl.static_range(N):
        pre = tl.load(pre_ptr + t * N + s, mask=t < tokens, other=0.0)
        out += pre[:, None] * load_stream(x_ptr, t, s, d, there, N, D)
    tl.store(out_ptr + t[:, None] * D + d[None, :], out, mask=there)


@triton.jit(do_not_specialize=["tokens"])
def d_pre_kernel(
    x_ptr, d_x_ptr, d_pre_ptr, tokens,
    N: tl.constexpr, NP: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """d_pre [T, N]: one product per stream."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    s_N = tl.arange(0, NP)
    d_pre = tl.zeros([BT, NP], tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        there = (t < tokens)[:, None] & (d < D)[None, :]
        d_x = load_stream(d_x_ptr, t, 0, d, there, 1, D)
        for s in tl.static_range(N):
            along = tl.sum(d_x * load_stream(x_ptr, t, s, d, there, N, D), 1)
            d_pre += tl.where((s_N == s)[None, :], along[:, None], 0.0)
    at = d_pre_ptr + t[:, None] * N + s_N[None, :]
    tl.store(at, d_pre, mask=(t < tokens)[:, None] & (s_N < N)[None, :])


@triton.jit
def _load_d_raw(d_raw_ptr, t, z, tokens, Z: tl.constexpr):
    """d_raw of tokens ``t`` and maps ``z``, one of them a column vector, the other a row vector."""
    return tl.load(d_raw_ptr + t * Z + z, mask=(t < tokens) & (z < Z), other=0.0)


@triton.jit(do_not_specialize=["tokens"])
def d_streams_kernel(
    x_ptr, fn_ptr, d_raw_ptr, along_ptr, pre_ptr, d_x_ptr, out_ptr, tokens,
    Z: tl.constexpr, ZP: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """d_X of one tile of one stream: through the projection, the rms and the collapse."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    s = tl.program_id(2)
    there = (t < tokens)[:, None] & (d < D)[None, :]
    z = tl.arange(0, ZP)
    pre = tl.load(pre_ptr + t * N + s, mask=t < tokens, other=0.0)
    along = tl.load(along_ptr + t, mask=t < tokens, other=0.0)
    out = pre[:, None] * load_stream(d_x_ptr, t, 0, d, there, 1, D)
    out += along[:, None] * load_stream(x_ptr, t, s, d, there, N, D)
    f = tl.where(d < D, s * D + d, N * D)
    d_raw = _load_d_raw(d_raw_ptr, t[:, None], z[None, :], tokens, Z)
    out = dot(d_raw, _load_fn(fn_ptr, z[:, None], f[None, :], Z, N * D), out)
    tl.store(out_ptr + (t * N + s)[:, None] * D + d[None, :], out, mask=there)


@triton.jit(do_not_specialize=["tokens"])
def d_fn_kernel(
    x_ptr, d_raw_ptr, d_fn_ptr, tokens,
    Z: tl.constexpr, ZP: tl.constexpr, F: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """BK columns of d_fn [Z, F]: a sum over all tokens, first to last."""
    f = tl.program_id(0) * BK + tl.arange(0, BK)
    z = tl.arange(0, ZP)
    d_fn = tl.zeros([ZP, BK], tl.float32)
    for start in range(0, tokens, BT):
        t = start + tl.arange(0, BT).to(tl.int64)
        x = load_stream(x_ptr, t, 0, f, (t < tokens)[:, None] & (f < F)[None, :], 1, F)
        d_fn = dot(_load_d_raw(d_raw_ptr, t[None, :], z[:, None], tokens, Z), x, d_fn)
    tl.store(d_fn_ptr + z[:, None] * F + f[None, :], d_fn, mask=(z < Z)[:, None] & (f < F)[None, :])


def _wide(maps: int) -> int:
    """Products need 16 rows and columns at least."""
    return max(16, triton.next_power_of_2(maps))


def project(streams_TND: Tensor, fn_ZF: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """raw [T, Z] and inv [T], float32."""
    tokens, (maps, width) = len(streams_TND), fn_ZF.shape
    raw = torch.empty(tokens, maps, dtype=torch.float32, device=fn_ZF.device)
    inv = torch.empty(tokens, dtype=torch.float32, device=fn_ZF.device)
    project_kernel[(triton.cdiv(tokens, TOKENS),)](
        streams_TND, fn_ZF, raw, inv, tokens, eps,
        Z=maps, ZP=_wide(maps), F=width, BT=TOKENS, BK=INNER, enable_fp_fusion=True,
    )  # fmt: skip
    return raw, inv


def collapse(streams_TND: Tensor, pre_TN: Tensor) -> Tensor:
    """x [T, D] in the streams' dtype."""
    tokens, n, hidden = streams_TND.shape
    out = torch.empty(tokens, hidden, dtype=streams_TND.dtype, device=streams_TND.device)
    collapse_kernel[(triton.cdiv(tokens, ROWS), triton.cdiv(hidden, COLUMNS))](
        streams_TND, pre_TN, out, tokens, N=n, D=hidden, BT=ROWS, BD=COLUMNS, enable_fp_fusion=True
    )
    return out


def d_pre(streams_TND: Tensor, d_x_TD: Tensor) -> Tensor:
    """Gradient of pre [T, N], float32."""
    tokens, n, hidden = streams_TND.shape
    out = torch.empty(tokens, n, dtype=torch.float32, device=streams_TND.device)
    d_pre_kernel[(triton.cdiv(tokens, ROWS),)](
        streams_TND, d_x_TD, out, tokens,
        N=n, NP=triton.next_power_of_2(n), D=hidden, BT=ROWS, BD=COLUMNS, enable_fp_fusion=True,
    )  # fmt: skip
    return out


def d_streams(
    streams_TND: Tensor, fn_ZF: Tensor, d_raw_TZ: Tensor, along_T: Tensor, pre_TN: Tensor, d_x_TD: Tensor
) -> Tensor:
    """Gradient of the streams in their dtype."""
    tokens, n, hidden = streams_TND.shape
    out, maps = torch.empty_like(streams_TND), len(fn_ZF)
    d_streams_kernel[(triton.cdiv(tokens, TOKENS), triton.cdiv(hidden, INNER), n)](
        streams_TND, fn_ZF, d_raw_TZ, along_T, pre_TN, d_x_TD, out, tokens,
        Z=maps, ZP=_wide(maps), N=n, D=hidden, BT=TOKENS, BD=INNER,
        num_warps=D_STREAMS_WARPS, enable_fp_fusion=True,
    )  # fmt: skip
    return out


def d_fn(streams_TND: Tensor, d_raw_TZ: Tensor) -> Tensor:
    """Gradient of fn [Z, F], float32."""
    tokens, n, hidden = streams_TND.shape
    maps, width = d_raw_TZ.shape[1], n * hidden
    out = torch.empty(maps, width, dtype=torch.float32, device=streams_TND.device)
    d_fn_kernel[(triton.cdiv(width, INNER),)](
        streams_TND, d_raw_TZ, out, tokens,
        Z=maps, ZP=_wide(maps), F=width, BT=TOKENS, BK=INNER, enable_fp_fusion=True,
    )  # fmt: skip
    return out
