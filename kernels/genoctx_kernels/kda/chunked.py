"""KDA in blocks of C tokens, plain torch: forward and hand-derived backward.

G is the running sum of the log-decay inside a block (inclusive), a the beta-free A. With entering
state S0 (equations derived in kernels/README.md, "KDA"):

    A_ts = beta_t <k_t, k_s e^{G_t-G_s}>  (s < t)       P_ts = <q_t, k_s e^{G_t-G_s}>  (s <= t)
    U = (I + A)^{-1} Diag(beta) (V - K+ S0)             O  = Q+ S0 + P U
    S1 = Diag(e^{G_C}) S0 + K-^T U                      K+ = k e^G, Q+ = q e^G, K- = k e^{G_C - G}

e^{-G} is never formed: G reaches -5 C. A block is split in halves again and again, down to single
tokens; entries between a right and a left half are anchored at the border, so every exponent is
<= 0 and depends on no token after its row: later tokens change no bit of an earlier output.

Letters: M = batch*heads, N blocks, C tokens per block, K key width, V value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Gradients(NamedTuple):
    """Gradients of the inputs of :func:`forward`, in its layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor


@dataclass(frozen=True)
class Blocks:
    """Everything about the blocks that does not depend on the entering state."""

    q_MNCK: Tensor
    k_MNCK: Tensor
    beta_MNC1: Tensor
    cum_MNCK: Tensor
    a_MNCC: Tensor  # strictly lower, without beta
    p_MNCC: Tensor  # lower, diagonal included
    q_in: Tensor  # Q+ [M, N, C, K]
    k_in: Tensor  # K+
    k_out: Tensor  # K-
    decay_MNK: Tensor  # e^{G_C}
    lower_MNCC: Tensor  # I + A
    u_free: Tensor  # (I+A)^-1 beta V   [M, N, C, V]
    w: Tensor  # (I+A)^-1 beta K+  [M, N, C, K]


def _solve(lower_MNCC: Tensor, rhs: Tensor, *, transposed: bool = False) -> Tensor:
    if transposed:
        return torch.linalg.solve_triangular(lower_MNCC.mT, rhs, upper=True, unitriangular=True)
    return torch.linalg.solve_triangular(lower_MNCC, rhs, upper=False, unitriangular=True)


def _halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Left and right halves of every run of ``2 * half`` tokens: two [..., C/(2 half), half, K]."""
    paired = x.unflatten(-2, (-1, 2, half))
    return paired[..., 0, :, :], paired[..., 1, :, :]


def _border_factors(cum_MNCK: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Row factor of the right halves and column factor of the left ones, anchored at the border."""
    left, right = _halves(cum_MNCK, half)
    border = left[..., -1, :].unsqueeze(-2)
    return (right - border).exp(), (border - left).exp()


def _levels(block: int) -> list[int]:
    """Half widths of the tree of squares: block/2, block/4, ..., 1."""
    return [1 << i for i in reversed(range(block.bit_length() - 1))]


def _diagonal(x_MNCC: Tensor, width: int) -> Tensor:
    """View of the squares of ``width`` on the diagonal: [M, N, C/width, width, width]."""
    squares = x_MNCC.unflatten(-1, (-1, width)).unflatten(-3, (-1, width))
    return squares.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _corner(x_MNCC: Tensor, half: int) -> Tensor:
    """View of (right rows, left columns) of every diagonal square of ``2 * half``."""
    return _diagonal(x_MNCC, 2 * half)[..., half:, :half]


def _score_matrices(q: Tensor, k: Tensor, cum: Tensor) -> tuple[Tensor, Tensor]:
    """a (strictly lower) and P (lower): every pair of tokens of a block, decayed."""
    block = q.shape[-2]
    rows = torch.stack((q, k))  # one product serves both
    out = rows.new_zeros(*rows.shape[:-1], block)
    for half in _levels(block):
        row, col = _border_factors(cum, half)
        left, _ = _halves(k, half)
        _, right = _halves(rows, half)
        _corner(out, half).copy_((right * row) @ (left * col).mT)
    out[0].diagonal(dim1=-2, dim2=-1).copy_((q * k).sum(-1))
    return out[1], out[0]


def _score_gradients(dp: Tensor, da: Tensor, b: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """(q', k', k'') of kernels/README.md: gradients through P and a with the decays in place."""
    block = dp.shape[-2]
    rows, grads = torch.stack((b.q_MNCK, b.k_MNCK)), torch.stack((dp, da))
    d_rows, d_cols = torch.zeros_like(rows), torch.zeros_like(b.k_MNCK)
    for half in _levels(block):
        row, col = _border_factors(b.cum_MNCK, half)
        left, _ = _halves(b.k_MNCK, half)
        _, right = _halves(rows, half)
        corner = _corner(grads, half)
        _halves(d_rows, half)[1].add_((corner @ (left * col)) * row)
        _halves(d_cols, half)[0].add_((corner.mT @ (right * row)).sum(0) * col)
    own = dp.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    d_rows[0] += own * b.k_MNCK
    d_cols += own * b.q_MNCK
    return d_rows[0], d_rows[1], d_cols


def prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta_MNC: Tensor) -> Blocks:
    """All block-local work, for every block at once. Inputs [M, N, C, *]."""
    cum = g.cumsum(-2)
    a, p = _score_matrices(q, k, cum)
    beta = beta_MNC.unsqueeze(-1)
    lower = a * beta  # the unit diagonal is implied by the solver
    grow = cum.exp()
    k_in = k * grow
    solved = _solve(lower, torch.cat((v, k_in), -1) * beta)
    return Blocks(
        q_MNCK=q,
        k_MNCK=k,
        beta_MNC1=beta,
        cum_MNCK=cum,
        a_MNCC=a,
        p_MNCC=p,
        q_in=q * grow,
        k_in=k_in,
        k_out=k * (cum[..., -1:, :] - cum).exp(),
        decay_MNK=cum[..., -1, :].exp(),
        lower_MNCC=lower,
        u_free=solved[..., : v.shape[-1]],
        w=solved[..., v.shape[-1] :],
    )


def scan(b: Blocks, state_MKV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Walk the blocks in order. Returns U [M,N,C,V], entering states [M,N,K,V], the last state."""
    states, us = [], []
    k_out_T = b.k_out.mT
    decay = b.decay_MNK.unsqueeze(-1)
    state = state_MKV
    for n in range(b.w.shape[1]):
        states.append(state)
        u = torch.baddbmm(b.u_free[:, n], b.w[:, n], state, alpha=-1)
        state = torch.baddbmm(state * decay[:, n], k_out_T[:, n], u)
        us.append(u)
    return torch.stack(us, 1), torch.stack(states, 1), state


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta_MNC: Tensor, state_MKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [M, N, C, V] and final state [M, K, V]; inputs [M, N, C, *] in the accumulator dtype."""
    b = prepare(q, k, v, g, beta_MNC)
    u, states, last = scan(b, state_MKV)
    return b.q_in @ states + b.p_MNCC @ u, last


def scan_back(b: Blocks, d_o: Tensor, d_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Last block to first: dU [M,N,C,V], gradient of each block's leaving state, of the first entering one."""
    d_u_own = b.p_MNCC.mT @ d_o
    d_state_own = b.q_in.mT @ d_o
    w_T, decay = b.w.mT, b.decay_MNK.unsqueeze(-1)
    d_state, d_us, d_leaving = d_last, [], []
    for n in reversed(range(b.w.shape[1])):
        d_leaving.append(d_state)
        d_u = torch.baddbmm(d_u_own[:, n], b.k_out[:, n], d_state)
        d_state = torch.baddbmm(d_state_own[:, n] + decay[:, n] * d_state, w_T[:, n], d_u, alpha=-1)
        d_us.append(d_u)
    return torch.stack(d_us[::-1], 1), torch.stack(d_leaving[::-1], 1), d_state


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta_MNC: Tensor,
    state_MKV: Tensor,
    d_o: Tensor,
    d_last: Tensor,
) -> Gradients:
    """Gradients from those of the outputs [M, N, C, V] and of the final state [M, K, V]; recomputes the forward."""
    b = prepare(q, k, v, g, beta_MNC)
    u, states, _ = scan(b, state_MKV)
    d_u, d_leaving, d_state = scan_back(b, d_o, d_last)

    d_r = _solve(b.lower_MNCC, d_u, transposed=True)
    d_e = d_r * b.beta_MNC1
    error = v - b.k_in @ states
    d_p = (d_o @ u.mT).tril()
    d_big_a = -(d_r @ u.mT).tril(-1)
    d_beta = (d_r * error).sum(-1) + (d_big_a * b.a_MNCC).sum(-1)

    d_q, d_row, d_col = _score_gradients(d_p, d_big_a * b.beta_MNC1, b)
    grow = b.cum_MNCK.exp()
    d_q = d_q + (d_o @ states.mT) * grow
    d_row = d_row - (d_e @ states.mT) * grow
    d_k_out = u @ d_leaving.mT
    d_col = d_col + d_k_out * (b.cum_MNCK[..., -1:, :] - b.cum_MNCK).exp()

    d_cum = q * d_q + k * (d_row - d_col)
    d_cum[..., -1, :] += (b.k_out * d_k_out).sum(-2) + b.decay_MNK * (states * d_leaving).sum(-1)
    d_g = d_cum.flip(-2).cumsum(-2).flip(-2)
    return Gradients(q=d_q, k=d_row + d_col, v=d_e, g=d_g, beta=d_beta, state=d_state)
