"""The maps of an mHC site from its projection, n (n + 2) numbers a token, and back, in float32 throughout.

With z = raw inv and a = scale z + base:

    pre = sigmoid(a_pre) + eps    post = 2 sigmoid(a_post)    C = rounds(softmax_rows(a_C) + eps)

where a round divides rows, then columns, by (their sum + eps), and one division of columns comes before the
first. Backward, y = x / (sum x + eps) has dx = (dy - sum dy y) / (sum x + eps); what a round started from is
computed again from the softmax, bit for bit, so nothing of the way is stored.

Letters: T tokens, N = n streams (s reads, m writes), Z = N (N + 2) maps, NP the power of two that holds N.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 64


@triton.jit
def _over_columns(c, eps):
    """c [BT, s, m] over the sums of its columns: one sum over s for each m."""
    return tl.div_rn(c, tl.broadcast_to(tl.sum(c, 1, keep_dims=True) + eps, c.shape))


@triton.jit
def _over_rows(c, eps):
    return tl.div_rn(c, tl.broadcast_to(tl.sum(c, 2, keep_dims=True) + eps, c.shape))


@triton.jit
def _rounds(start, count, eps):
    """Columns once, then ``count`` rounds of rows and columns."""
    c = _over_columns(start, eps)
    for _ in range(count):
        c = _over_columns(_over_rows(c, eps), eps)
    return c


@triton.jit
def _back_over(d, x, eps, real, AXIS: tl.constexpr):
    """dx of y = x / (sum of x along AXIS + eps), from dy; padding stays zero."""
    total = tl.broadcast_to(tl.sum(x, AXIS, keep_dims=True) + eps, x.shape)
    y = tl.div_rn(x, total)
    d = tl.div_rn(d - tl.sum(d * y, AXIS, keep_dims=True), total)
    return tl.where(real, d, 0.0)


@triton.jit
def _softmax(logits, real):
    """Over m; zero in the padding."""
    logits = tl.where(real, logits, float("-inf"))
    top = tl.max(logits, 2, keep_dims=True)
    e = tl.where(real, tl.exp(logits - tl.where(top == float("-inf"), 0.0, top)), 0.0)
    total = tl.sum(e, 2, keep_dims=True)
    return tl.div_rn(e, tl.broadcast_to(tl.where(total == 0.0, 1.0, total), e.shape))


@triton.jit
def _gates(
    raw_ptr, base_ptr, scale_ptr, t, inv, there, GROUP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr
):  # fmt: skip
    """(z, sigmoid(a)) of the N gates of pre (GROUP 0) or post (1): [BT, NP] each."""
    i = tl.arange(0, NP)
    raw = tl.load(raw_ptr + t[:, None] * (N * (N + 2)) + GROUP * N + i[None, :], mask=there, other=0.0)
    base = tl.load(base_ptr + GROUP * N + i, mask=i < N, other=0.0).to(tl.float32)
    z = raw * inv[:, None]
    return z, tl.sigmoid(tl.load(scale_ptr + GROUP).to(tl.float32) * z + base[None, :])


@triton.jit
def _places(t, N: tl.constexpr, NP: tl.constexpr):
    """Offsets of C's logits in a row of Z, and which places of [s, m] are real: [1, NP, NP]."""
    s, m = tl.arange(0, NP)[None, :, None], tl.arange(0, NP)[None, None, :]
    return 2 * N + s * N + m, (s < N) & (m < N)


@triton.jit
def _logits(raw_ptr, base_ptr, scale_ptr, t, inv, there, N: tl.constexpr, NP: tl.constexpr):
    """(z, a) of C: [BT, NP, NP] each."""
    place, real = _places(t, N, NP)
    raw = tl.load(
        raw_ptr + t[:, None, None] * (N * (N + 2)) + place, mask=there[:, None, None] & real, other=0.0
    )
    base = tl.load(base_ptr + place, mask=real, other=0.0).to(tl.float32)
    z = raw * inv[:, None, None]
    return z, tl.load(scale_ptr + 2).to(tl.float32) * z + base


@triton.jit(do_not_specialize=["tokens"])
def maps_kernel(
    raw_ptr, inv_ptr, base_ptr, scale_ptr, pre_ptr, post_ptr, comb_ptr, tokens, eps,
    ITERS: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """pre, post [T, N] and C [T, N, N]."""
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    there = t < tokens
    inv = tl.load(inv_ptr + t, mask=there, other=0.0)
    i = tl.arange(0, NP)
    gate_at, gate_there = t[:, None] * N + i[None, :], there[:, None] & (i < N)[None, :]
    _, gate = _gates(raw_ptr, base_ptr, scale_ptr, t, inv, gate_there, 0, N, NP)
    tl.store(pre_ptr + gate_at, gate + eps, mask=gate_there)
    _, gate = _gates(raw_ptr, base_ptr, scale_ptr, t, inv, gate_there, 1, N, NP)
    tl.store(post_ptr + gate_at, 2 * gate, mask=gate_there)

    place, real = _places(t, N, NP)
    _, a = _logits(raw_ptr, base_ptr, scale_ptr, t, inv, there, N, NP)
    c = _rounds(tl.where(real, _softmax(a, real) + eps, 0.0), ITERS - 1, eps)
    comb_at = comb_ptr + t[:, None, None] * (N * N) + place - 2 * N
    tl.store(comb_at, c, mask=there[:, None, None] & real)


@triton.jit
def _back_rounds(d, start, eps, real, ITERS: tl.constexpr):
    """d of ``start`` from d of ``_rounds(start, ITERS - 1)``, rounds from last to first."""
    for k in range(ITERS - 1):
        before = _rounds(start, ITERS - 2 - k, eps)
        d = _back_over(d, _over_rows(before, eps), eps, real, 1)
        d = _back_over(d, before, eps, real, 2)
    return _back_over(d, start, eps, real, 1)


@triton.jit
def _store_gates(
    d, z, d_a_ptr, d_raw_ptr, scale_ptr, t, inv, there, GROUP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr
):  # fmt: skip
    """Writes d_a and d_raw of the N gates of a group; returns sum d_z z [BT]."""
    at = t[:, None] * (N * (N + 2)) + GROUP * N + tl.arange(0, NP)[None, :]
    d_z = d * tl.load(scale_ptr + GROUP).to(tl.float32)
    tl.store(d_a_ptr + at, d, mask=there)
    tl.store(d_raw_ptr + at, d_z * inv[:, None], mask=there)
    return tl.sum(d_z * z, 1)


@triton.jit(do_not_specialize=["tokens"])
def d_maps_kernel(
    raw_ptr, inv_ptr, base_ptr, scale_ptr, d_pre_ptr, d_post_ptr, d_comb_ptr, d_a_ptr, d_raw_ptr, along_ptr,
    tokens, width, eps,
    ITERS: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """d_a and d_raw [T, Z], and along [T]: the gradient through inv is along times the streams.

    inv = (mean x^2 + eps)^-1/2 over ``width`` numbers has d inv / d x = -inv^3 x / width, and z = raw inv.
    """
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    there = t < tokens
    inv = tl.load(inv_ptr + t, mask=there, other=0.0)
    i = tl.arange(0, NP)
    gate_at, gate_there = t[:, None] * N + i[None, :], there[:, None] & (i < N)[None, :]
    z, gate = _gates(raw_ptr, base_ptr, scale_ptr, t, inv, gate_there, 0, N, NP)
    d = tl.load(d_pre_ptr + gate_at, mask=gate_there, other=0.0) * gate * (1 - gate)
    along = _store_gates(d, z, d_a_ptr, d_raw_ptr, scale_ptr, t, inv, gate_there, 0, N, NP)
    z, gate = _gates(raw_ptr, base_ptr, scale_ptr, t, inv, gate_there, 1, N, NP)
    d = 2 * tl.load(d_post_ptr + gate_at, mask=gate_there, other=0.0) * gate * (1 - gate)
    along += _store_gates(d, z, d_a_ptr, d_raw_ptr, scale_ptr, t, inv, gate_there, 1, N, NP)

    place, real = _places(t, N, NP)
    inside = there[:, None, None] & real
    z, a = _logits(raw_ptr, base_ptr, scale_ptr, t, inv, there, N, NP)
    soft = _softmax(a, real)
    d = tl.load(d_comb_ptr + t[:, None, None] * (N * N) + place - 2 * N, mask=inside, other=0.0)
    d = _back_rounds(d, tl.where(real, soft + eps, 0.0), eps, real, ITERS)
    d = soft * (d - tl.sum(d * soft, 2, keep_dims=True))
    d_z = d * tl.load(scale_ptr + 2).to(tl.float32)
    at = t[:, None, None] * (N * (N + 2)) + place
    tl.store(d_a_ptr + at, d, mask=inside)
    tl.store(d_raw_ptr + at, d_z * inv[:, None, None], mask=inside)
    along += tl.sum(tl.sum(d_z * z, 2), 1)
    tl.store(along_ptr + t, -along * inv * inv / width, mask=there)


def maps(
    raw_TZ: Tensor, inv_T: Tensor, base_Z: Tensor, scale: Tensor, n: int, iters: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """pre and post [T, n], C [T, n, n], float32."""
    tokens = len(raw_TZ)
    pre, post = raw_TZ.new_empty(tokens, n), raw_TZ.new_empty(tokens, n)
    comb = raw_TZ.new_empty(tokens, n, n)
    maps_kernel[(triton.cdiv(tokens, TOKENS),)](
        raw_TZ, inv_T, base_Z, scale, pre, post, comb, tokens, eps,
        ITERS=iters, N=n, NP=triton.next_power_of_2(n), BT=TOKENS, enable_fp_fusion=True,
    )  # fmt: skip
    return pre, post, comb


def d_maps(
    raw_TZ: Tensor, inv_T: Tensor, base_Z: Tensor, scale: Tensor, d: tuple[Tensor, Tensor, Tensor],
    width: int, iters: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From d of (pre, post, C): d of raw [T, Z], along [T], d of base [Z] and of scale [3]."""
    tokens, n = d[0].shape
    d_a, d_raw, along = torch.empty_like(raw_TZ), torch.empty_like(raw_TZ), torch.empty_like(inv_T)
    d_maps_kernel[(triton.cdiv(tokens, TOKENS),)](
        raw_TZ, inv_T, base_Z, scale, *d, d_a, d_raw, along, tokens, width, eps,
        ITERS=iters, N=n, NP=triton.next_power_of_2(n), BT=TOKENS, enable_fp_fusion=True,
    )  # fmt: skip
    # tokens cancel in these sums; in float64 they cost nothing
    by_map = (d_a.double() * raw_TZ * inv_T.unsqueeze(-1)).sum(0)
    d_scale = torch.stack([part.sum() for part in by_map.split((n, n, n * n))])
    return d_raw, along, d_a.sum(0, dtype=torch.float64), d_scale
