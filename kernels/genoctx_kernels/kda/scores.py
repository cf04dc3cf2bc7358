"""The decayed scores inside blocks, a and P of chunked.py, and their gradients: square by square.

A block of C tokens is split in halves again and again, down to squares of at most ``NARROW`` tokens. An
entry between a right half (its row) and a left half (its column) is anchored at the border, so both of its
decays are at most 1. Inside a narrow square the anchor is its first token: rows decay from there, columns
grow, by e^35 at most for decays of at least -5 a token; a column later than its row is never used. No
anchor comes after a row: later tokens change no bit of an earlier output.

Decays are powers of two of sums of g / ln 2: exp of numbers below -87 costs ten times as much as exp2.

Letters: M = batch*heads, N blocks, C tokens a block, S squares a block, W tokens of a square, K key width,
V value width; E = M*N*S.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NARROW = 8


class Squares(NamedTuple):
    """All squares of one width: their rows and columns, decayed, and the decays of both."""

    width: int
    narrow: bool  # on the diagonal; else right rows, left columns of every pair of runs
    row_MNSWK: Tensor
    column_MNSWK: Tensor
    rows_E2WK: Tensor  # those of q, then those of k, [E, 2 W, K]: one product serves both
    columns_EWK: Tensor

    def of_rows(self, x_MNCD: Tensor) -> Tensor:
        """View [..., S, W, D] of the tokens that are rows."""
        runs = x_MNCD.unflatten(-2, (-1, self.width))
        return runs if self.narrow else runs[..., 1::2, :, :]

    def of_columns(self, x_MNCD: Tensor) -> Tensor:
        """View [..., S, W, D] of the tokens that are columns."""
        runs = x_MNCD.unflatten(-2, (-1, self.width))
        return runs if self.narrow else runs[..., 0::2, :, :]

    def place(self, out_MNCC: Tensor) -> Tensor:
        """View [M, N, S, W, W] of the squares in a matrix of all pairs."""
        rows = self.of_rows(out_MNCC).unflatten(-1, (-1, self.width))
        columns = rows if self.narrow else rows[..., 0::2, :]
        return columns.diagonal(dim1=2, dim2=4).movedim(-1, 2)

    def product(self, left_E2WD: Tensor, right_EWD: Tensor) -> Tensor:
        """Of rows (for P, then for a) and columns: [E, 2 W, W], zero where a square is not there."""
        out = torch.bmm(left_E2WD, right_EWD.mT)
        if self.narrow:
            ones = out.new_ones(self.width, self.width)
            out.mul_(torch.cat((ones.tril(), ones.tril(-1))))
        return out

    def split(self, x_E2WD: Tensor) -> tuple[Tensor, ...]:
        """[M, N, S, W, D], of the first W rows and of the last."""
        return x_E2WD.unflatten(0, self.row_MNSWK.shape[:3]).unflatten(-2, (2, -1)).unbind(-3)


def _squares(width: int, decays: tuple[Tensor, Tensor], narrow: bool, q: Tensor, k: Tensor) -> Squares:
    row, column = decays
    rows = row.new_empty(*row.shape[:3], 2, *row.shape[3:])
    squares = Squares(width, narrow, row, column, rows.flatten(3, 4).flatten(0, 2), column)
    for i, x in enumerate((q, k)):
        torch.mul(squares.of_rows(x), row, out=rows[:, :, :, i])
    return squares._replace(columns_EWK=(squares.of_columns(k) * column).flatten(0, 2))


def all_squares(q: Tensor, k: Tensor, cum_MNCK: Tensor) -> list[Squares]:
    """Of q, k and G / ln 2, [M, N, C, K]: every pair of tokens of a block is in one square."""
    out, width = [], cum_MNCK.shape[-2]
    while width > NARROW:
        width //= 2
        runs = cum_MNCK.unflatten(-2, (-1, width))
        left, right = runs[..., 0::2, :, :], runs[..., 1::2, :, :]
        border = left[..., -1:, :]
        out.append(_squares(width, ((right - border).exp2_(), (border - left).exp2_()), False, q, k))
    runs = cum_MNCK.unflatten(-2, (-1, width))
    growth = (runs[..., :1, :] - runs).exp2_()
    out.append(_squares(width, (growth.reciprocal(), growth), True, q, k))
    return out


def score_matrices(q: Tensor, squares: list[Squares]) -> tuple[Tensor, Tensor]:
    """a (strictly lower) and P (lower), [M, N, C, C]; of q only the shape is used."""
    a, p = (q.new_zeros(*q.shape[:-1], q.shape[-2]) for _ in range(2))
    for s in squares:
        of_q, of_k = s.split(s.product(s.rows_E2WK, s.columns_EWK))
        s.place(p).copy_(of_q)
        s.place(a).copy_(of_k)
    return a, p


def add_score_gradients(
    d_q: Tensor, d_row: Tensor, d_column: Tensor, squares: list[Squares], outer_MN2CV: Tensor, u_MNCV: Tensor
) -> None:
    """Add q', k' and k'' of kernels/README.md to ``d_q``, ``d_row`` and ``d_column``, [M, N, C, K].

    The gradients of P and of a are the products of the two parts of ``outer`` with u^T; each square
    makes its own entries of them.
    """
    for s in squares:
        outer_E2WV = s.of_rows(outer_MN2CV).transpose(2, 3).flatten(3, 4).flatten(0, 2)
        scores = s.product(outer_E2WV, s.of_columns(u_MNCV).flatten(0, 2))
        of_q, of_k = s.split(torch.bmm(scores, s.columns_EWK))
        s.of_rows(d_q).addcmul_(of_q, s.row_MNSWK)
        s.of_rows(d_row).addcmul_(of_k, s.row_MNSWK)
        of_columns = torch.bmm(scores.mT, s.rows_E2WK).unflatten(0, s.row_MNSWK.shape[:3])
        s.of_columns(d_column).addcmul_(of_columns, s.column_MNSWK)
