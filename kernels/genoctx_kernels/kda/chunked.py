"""KDA in blocks of C tokens, plain torch: forward and hand-derived backward.

G is the running sum of the log-decay inside a block (inclusive), a the beta-free A. With entering
state S0 (equations derived in kernels/README.md, "KDA"):

    A_ts = beta_t <k_t, k_s e^{G_t-G_s}>  (s < t)       P_ts = <q_t, k_s e^{G_t-G_s}>  (s <= t)
    U = (I + A)^{-1} Diag(beta) (V - K+ S0)             O  = Q+ S0 + P U
    S1 = Diag(e^{G_C}) S0 + K-^T U                      K+ = k e^G, Q+ = q e^G, K- = k e^{G_C - G}

e^{-G} is never formed: G reaches -5 C. scores.py has a and P, inverse.py T = (I + A)^{-1}. With W = T
Diag(beta) K+, one block is S1 = X S0 + Y, X = Diag(e^{G_C}) - K-^T W [K, K] and Y = K-^T T Diag(beta) V, so
that the walk over blocks is one small product each, and everything else is done for all blocks at once.

Kept for backward: a, P, T, W, U and the entering states; to make them again was a third of its time. What
follows from queries, keys and decays alone is made again.

Letters: M = batch*heads, N blocks, C tokens per block, K key width, V value width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genoctx_kernels.kda.inverse import unit_lower_inverse
from genoctx_kernels.kda.scores import Squares, add_score_gradients, all_squares, score_matrices


class Gradients(NamedTuple):
    """Gradients of the inputs of :func:`forward`, in its layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor


class Kept(NamedTuple):
    """What :func:`backward` wants of :func:`forward`."""

    a_MNCC: Tensor
    p_MNCC: Tensor
    inverse_MNCC: Tensor
    w_MNCK: Tensor
    u_MNCV: Tensor
    states_MNKV: Tensor  # entering each block


@dataclass(frozen=True)
class Decayed:
    """Queries and keys with their decays inside blocks."""

    squares: list[Squares]
    grown_MNCK: Tensor  # e^G
    left_MNCK: Tensor  # e^{G_C - G}
    q_in: Tensor  # Q+
    k_in: Tensor  # K+
    k_out: Tensor  # K-


@dataclass(frozen=True)
class Blocks(Decayed):
    """Everything about the blocks that does not depend on the entering state."""

    beta_MNC1: Tensor
    a_MNCC: Tensor  # strictly lower, without beta
    p_MNCC: Tensor  # lower, diagonal included
    inverse_MNCC: Tensor  # T
    w: Tensor  # T Diag(beta) K+  [M, N, C, K]
    step_MNKK: Tensor  # X

    @property
    def decay_MNK(self) -> Tensor:
        """e^{G_C}."""
        return self.grown_MNCK[..., -1, :]


def _decayed(q: Tensor, k: Tensor, g: Tensor) -> Decayed:
    cum = (g * (1 / math.log(2))).cumsum(-2)  # decays are powers of two: see scores.py
    grown, left = cum.exp2(), (cum[..., -1:, :] - cum).exp2_()
    return Decayed(all_squares(q, k, cum), grown, left, q * grown, k * grown, k * left)


def _blocks(d: Decayed, beta_MNC: Tensor, a: Tensor, p: Tensor, inverse: Tensor, w: Tensor) -> Blocks:
    step = (d.k_out.mT @ w).neg_()
    step.diagonal(dim1=-2, dim2=-1).add_(d.grown_MNCK[..., -1, :])
    return Blocks(
        **vars(d),
        beta_MNC1=beta_MNC.unsqueeze(-1),
        a_MNCC=a,
        p_MNCC=p,
        inverse_MNCC=inverse,
        w=w,
        step_MNKK=step,
    )


def prepare(q: Tensor, k: Tensor, g: Tensor, beta_MNC: Tensor) -> Blocks:
    """All block-local work but for the values, for every block at once. Inputs [M, N, C, *]."""
    d = _decayed(q, k, g)
    a, p = score_matrices(q, d.squares)
    inverse = unit_lower_inverse(a * beta_MNC.unsqueeze(-1))
    return _blocks(d, beta_MNC, a, p, inverse, (inverse * beta_MNC.unsqueeze(-2)) @ d.k_in)


def _minus(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """x - left right, for every block."""
    out = torch.baddbmm(x.flatten(0, 1), left.flatten(0, 1), right.flatten(0, 1), alpha=-1)
    return out.view_as(x)


def _walk(first_MKV: Tensor, steps_NMKK: tuple[Tensor, ...], added_NMKV: tuple[Tensor, ...]) -> Tensor:
    """S_0 = first, S_n+1 = step_n S_n + added_n: all N + 1 of them, [M, N + 1, K, V]."""
    out = first_MKV.new_empty(len(steps_NMKK) + 1, *first_MKV.shape)
    out[0] = first_MKV
    states = out.unbind()
    for n, (step, added) in enumerate(zip(steps_NMKK, added_NMKV, strict=True)):
        torch.baddbmm(added, step, states[n], out=states[n + 1])
    return out.transpose(0, 1)


def scan(b: Blocks, v: Tensor, state_MKV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Walk the blocks in order. Returns U [M,N,C,V], entering states [M,N,K,V], the last state."""
    u_free = b.inverse_MNCC @ (b.beta_MNC1 * v)
    states = _walk(state_MKV, b.step_MNKK.unbind(1), (b.k_out.mT @ u_free).unbind(1))
    entering = states[:, :-1].contiguous()
    return _minus(u_free, b.w, entering), entering, states[:, -1].clone()  # not all states with it


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta_MNC: Tensor, state_MKV: Tensor
) -> tuple[Tensor, Tensor, Kept]:
    """Outputs [M, N, C, V] and final state [M, K, V]; inputs [M, N, C, *] in the accumulator dtype."""
    b = prepare(q, k, g, beta_MNC)
    u, states, last = scan(b, v, state_MKV)
    out = torch.bmm(b.q_in.flatten(0, 1), states.flatten(0, 1))
    out.baddbmm_(b.p_MNCC.flatten(0, 1), u.flatten(0, 1))
    return out.view_as(u), last, Kept(b.a_MNCC, b.p_MNCC, b.inverse_MNCC, b.w, u, states)


def scan_back(b: Blocks, d_o: Tensor, d_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Last block to first: dU [M,N,C,V], gradient of each block's leaving state, of the first entering one."""
    d_u_own = b.p_MNCC.mT @ d_o
    added = _minus(b.q_in.mT @ d_o, b.w.mT, d_u_own)
    d_states = _walk(d_last, b.step_MNKK.mT.unbind(1)[::-1], added.unbind(1)[::-1])
    d_leaving = d_states[:, :-1].flip(1).contiguous()
    d_u = d_u_own.flatten(0, 1).baddbmm_(b.k_out.flatten(0, 1), d_leaving.flatten(0, 1))
    return d_u.view_as(d_u_own), d_leaving, d_states[:, -1].clone()


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta_MNC: Tensor, kept: Kept, d_o: Tensor, d_last: Tensor
) -> Gradients:
    """Gradients from those of the outputs [M, N, C, V] and of the final state [M, K, V]."""
    b = _blocks(_decayed(q, k, g), beta_MNC, *kept[:4])
    u, states = kept.u_MNCV, kept.states_MNKV
    d_u, d_leaving, d_state = scan_back(b, d_o, d_last)

    d_r = b.inverse_MNCC.mT @ d_u
    error = _minus(_minus(v, b.k_in, states), b.a_MNCC, u)
    d_beta = torch.linalg.vecdot(d_r, error)
    outer_MN2CV = torch.stack((d_o, d_r), 2)
    minus_d_e = outer_MN2CV[:, :, 1].mul_(-b.beta_MNC1)

    through_state = (outer_MN2CV.flatten(2, 3) @ states.mT).view(*q.shape[:2], 2, *q.shape[2:])
    d_q, d_row = through_state.mul_(b.grown_MNCK.unsqueeze(2)).unbind(2)
    d_col = (u @ d_leaving.mT).mul_(b.left_MNCK)
    d_cum_last = (k * d_col).sum(-2) + b.decay_MNK * (states * d_leaving).sum(-1)
    add_score_gradients(d_q, d_row, d_col, b.squares, outer_MN2CV, u)

    d_cum = (q * d_q).addcmul_(k, d_row - d_col)
    d_cum[..., -1, :] += d_cum_last
    d_g = d_cum.flip(-2).cumsum(-2).flip(-2)
    return Gradients(q=d_q, k=d_row + d_col, v=-minus_d_e, g=d_g, beta=d_beta, state=d_state)
