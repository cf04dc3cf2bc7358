"""Sparse attention in Triton's interpreter: outputs, both gradients, and the window's d-latent buffer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from ahead import Variant, assert_fits
from compare import assert_error_bound, relative
from torch import Tensor

from genoctx_kernels.dispatch import chosen
from genoctx_kernels.dsa import sparse_attention, triton_attention, triton_attention_backward
from genoctx_kernels.dsa.attention import with_tail
from genoctx_kernels.dsa.reference import attention_reference, select_reference, visible_reference

pytestmark = pytest.mark.usefixtures("on_triton")

SCALE = 0.4
LAUNCH = {"warps": triton_attention.LAUNCH["num_warps"], "stages": triton_attention.LAUNCH["num_stages"]}


@pytest.fixture(autouse=True)
def several_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """About ten queries a slab, and pools shared by more queries than are added at once."""
    monkeypatch.setattr(triton_attention_backward, "SLAB_BYTES", 1 << 16)
    monkeypatch.setattr(triton_attention_backward, "ENTRIES", 4)
    monkeypatch.setattr(triton_attention_backward, "SUM_TILE", 128)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """T tokens, P tokens a pool, K pools kept, H heads, R latent width."""

    tokens: int
    pool: int
    top: int
    heads: int
    width: int

    def inputs(self) -> list[Tensor]:
        return [draw(self.tokens, self.heads, self.width), draw(self.tokens, self.width, seed=1)]

    def ids(self) -> Tensor:
        return select_reference(draw(self.tokens, self.tokens // self.pool, seed=2), self.pool, self.top)

    def buffer(self, latents: Tensor) -> Tensor:
        """The window's latents; rows that no token has filled yet are NaN: they must never be read."""
        rows = -(-self.tokens // self.pool) * self.pool
        buffer = latents.new_full((rows, self.width), float("nan"))
        buffer[: self.tokens] = latents.detach()
        return buffer

    def op(self, q: Tensor, latents: Tensor) -> Tensor:
        return sparse_attention(
            q, latents, self.buffer(latents), self.ids(), first=0, pool=self.pool, scale=SCALE
        )

    def reference(self, q: Tensor, latents: Tensor) -> Tensor:
        seen = visible_reference(self.ids(), self.pool, self.tokens)
        return attention_reference(q, latents, seen, SCALE)[0]


CASES = [
    Case(1, 4, 2, 2, 16),
    Case(3, 4, 2, 2, 16),  # no complete pool: tails alone
    Case(22, 4, 3, 3, 24),  # nothing fills a tile
    Case(20, 8, 3, 17, 64),  # two tiles of heads
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients(case: Case, dtype: torch.dtype) -> None:
    assert_error_bound(case.op, case.reference, case.inputs(), dtype)
    assert chosen["dsa_attention"].triton


@pytest.mark.parametrize("case", [Case(63, 4, 5, 3, 24), Case(100, 1, 5, 1, 64)], ids=str)
def test_longer_chunks(case: Case) -> None:
    assert_error_bound(case.op, case.reference, case.inputs(), torch.float32)


def test_log_sum_exp() -> None:
    case = Case(30, 4, 5, 3, 24)
    q, latents = case.inputs()
    seen = visible_reference(case.ids(), 4, 30)
    logits = torch.einsum("thr,sr->ths", q, latents) * SCALE
    exact = logits.masked_fill(~seen.unsqueeze(1), float("-inf")).logsumexp(-1)
    pools = with_tail(case.ids(), 0, 4).int()
    lse = triton_attention.forward(q.float(), case.buffer(latents).float(), pools, 0, 4, SCALE)[1]
    assert lse.dtype == torch.float32
    assert relative(lse, exact) < 1e-6


def test_a_later_chunk_adds_into_the_buffer() -> None:
    """Gradients of older latents land in the buffer; those of this chunk come back with what waited there."""
    case, first = Case(257, 4, 9, 2, 16), 234
    q, latents = (x.requires_grad_() for x in case.inputs())
    weights = draw(257, 2, 16, seed=5)
    (case.reference(q, latents) * weights)[first:].sum().backward()
    assert q.grad is not None and latents.grad is not None
    waiting = draw(260, 16, seed=6).float()
    d_buffer = waiting.clone()
    new_q = q.detach()[first:].float().requires_grad_()
    own = latents.detach()[first:].float().requires_grad_()
    buffer, ids = case.buffer(latents).float(), case.ids()[first:]
    out = sparse_attention(new_q, own, buffer, ids, first=first, pool=4, scale=SCALE, d_buffer_SR=d_buffer)
    (out * weights[first:].float()).sum().backward()
    assert new_q.grad is not None and own.grad is not None
    assert relative(new_q.grad, q.grad[first:]) < 2e-6
    assert relative((d_buffer - waiting)[:257], latents.grad) < 2e-6
    assert torch.equal(own.grad, d_buffer[first:257])
    assert torch.equal(d_buffer[257:], waiting[257:])


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    """Query 7 closes a pool, so it has no tail, and is given no pool; query 6 keeps its tail."""
    case = Case(9, 4, 1, 2, 16)
    q, latents = (x.float().requires_grad_() for x in case.inputs())
    ids = torch.full((9, 1), -1, dtype=torch.int32)
    out = sparse_attention(q, latents, case.buffer(latents), ids, first=0, pool=4, scale=SCALE)
    out.sum().backward()
    assert q.grad is not None and latents.grad is not None
    closed = torch.tensor([3, 7])
    assert (out[closed] == 0).all() and (q.grad[closed] == 0).all()
    assert (out[6] != 0).all() and out.isfinite().all()
    assert q.grad.isfinite().all() and latents.grad.isfinite().all()
    assert (latents.grad[closed] == 0).all() and (latents.grad[8] != 0).all()


def test_gradients_are_the_same_bits_again_and_nearly_so_in_one_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(20, 4, 3, 2, 16)
    weights = draw(20, 2, 16, seed=5).float()

    def gradients() -> list[Tensor]:
        leaves = [x.float().requires_grad_() for x in case.inputs()]
        (case.op(*leaves) * weights).sum().backward()
        return [x.grad for x in leaves if x.grad is not None]

    first, again = gradients(), gradients()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    monkeypatch.setattr(triton_attention_backward, "SLAB_BYTES", 1 << 30)
    assert all(relative(a, b) < 1e-6 for a, b in zip(first, gradients(), strict=True))


def test_later_tokens_change_no_bit() -> None:
    case = Case(30, 4, 2, 2, 16)
    q, latents = (x.float() for x in case.inputs())
    whole = case.op(q, latents)
    other = latents.clone()
    other[21:] = 7.0
    assert torch.equal(case.op(q, other)[:21], whole[:21])


def test_no_queries() -> None:
    q, own = torch.zeros(0, 2, 16, requires_grad=True), torch.zeros(0, 16, requires_grad=True)
    out = sparse_attention(
        q, own, torch.ones(8, 16), torch.zeros(0, 2, dtype=torch.int32), first=5, pool=4, scale=1.0,
        d_buffer_SR=torch.ones(8, 16),
    )  # fmt: skip
    out.sum().backward()
    assert q.grad is not None and q.grad.shape == (0, 2, 16)


@pytest.mark.parametrize("dtype,width", [(torch.float32, 132), (torch.bfloat16, 516)])
def test_wider_latents_stay_in_plain_torch(dtype: torch.dtype, width: int) -> None:
    case = Case(5, 4, 1, 1, width)
    q, latents = (x.to(dtype) for x in case.inputs())
    sparse_attention(q, latents, latents.new_zeros(8, width), case.ids(), first=0, pool=4, scale=SCALE)
    assert "wider than" in chosen["dsa_attention"].reason


def variants(dtype: torch.dtype, name: str, width: int) -> list[Variant]:
    """The kernels on 64 heads and ``width`` latents in the tiles that a launch would take."""
    types = {f"{x}_ptr": f"*{name}" for x in ("q", "latents", "out", "d_out", "d_q")}
    types |= {f"{x}_ptr": "*fp32" for x in ("lse", "share", "delta", "parts")}
    types |= {"pools_ptr": "*i32", "first": "i32", "pools": "i32", "log2_scale": "fp32", "scale": "fp32"}
    constants = {"HEADS": 64, "WIDTH": width, "POOL": 4} | triton_attention.tiles(dtype, 64, width)
    of_query = ("q_ptr", "latents_ptr", "pools_ptr", "d_out_ptr", "lse_ptr", "share_ptr", "delta_ptr")
    common = ("first", "pools", "log2_scale")
    made = []
    for module, kernel, names, changes, launch in (
        ("", "forward", ("q_ptr", "latents_ptr", "pools_ptr", "out_ptr", "lse_ptr"), {}, LAUNCH),
        ("_backward", "delta", of_query, {"CT": 2 * constants["CT"]}, LAUNCH),
        ("_backward", "query", (*of_query, "d_q_ptr", "scale"), {}, LAUNCH),
        ("_backward", "latent", (*of_query, "parts_ptr", "scale"), {}, LAUNCH | {"stages": 1}),
    ):
        path = f"genoctx_kernels.dsa.triton_attention{module}:{kernel}_kernel"
        signature = {k: types[k] for k in (*names, *common)}
        made.append(Variant(path, signature, constants | changes, label=name, **launch))
    return made


def test_fits_the_gpus() -> None:
    """Not one register is spilled."""
    types = {"parts_ptr": "*fp32", "pool_ptr": "*i32", "entry_ptr": "*i64", "end_ptr": "*i64"}
    types |= {"d_pools_ptr": "*fp32", "begin": "i32"}
    constants = {"ROW": 4 * 512, "RT": 512, "ENTRIES": 8}
    total = Variant("genoctx_kernels.dsa.triton_attention_backward:sum_kernel", types, constants)
    assert_fits([*variants(torch.bfloat16, "bf16", 512), *variants(torch.float32, "fp32", 128), total])
