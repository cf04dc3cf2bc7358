"""Nothing computed for a prefix changes by one bit when later tokens change."""

from __future__ import annotations

import pytest
import torch

from genoctx.config import preset_model
from genoctx.engine.batch import Batch, bounds
from genoctx.engine.stream import forward_sweep, walk
from genoctx.model.carry import DsaCarry
from genoctx.model.hybrid import Hybrid, build


@pytest.fixture(scope="module")
def model() -> Hybrid:
    return build(preset_model("micro"), seed=3)


def windows(length: int, prefix: int) -> tuple[Batch, Batch]:
    """Two windows that differ from ``prefix`` on; the second row has a run of N."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4, (2, length), generator=generator)
    tokens[1, length // 20 : length // 4] = 4
    changed = tokens.clone()
    changed[:, prefix:] = torch.randint(0, 5, (2, length - prefix), generator=generator)
    assert not torch.equal(tokens, changed)
    return Batch(tokens, tokens, ("a", "b")), Batch(changed, changed, ("a", "b"))


@pytest.mark.parametrize("chunk", [1, 37, 128, 700])
def test_hidden_states(model: Hybrid, chunk: int) -> None:
    length, prefix = (60, 41) if chunk == 1 else (700, 413)
    before, after = windows(length, prefix)
    limits = bounds(length, chunk)
    a, b = (torch.cat([h for _, _, h in walk(model, w, limits)], 1) for w in (before, after))
    assert torch.equal(a[:, :prefix], b[:, :prefix])
    assert not torch.equal(a[:, prefix:], b[:, prefix:])


def test_carries_choices_and_caches(model: Hybrid) -> None:
    chunk, prefix = 100, 413
    before, after = windows(700, prefix)
    a, b = (forward_sweep(model, w, bounds(700, chunk)) for w in (before, after))
    whole = prefix // chunk
    for c in range(whole + 1):
        for x, y in zip(a.carries[c], b.carries[c], strict=True):
            assert all(torch.equal(s, t) for s, t in zip(x.tensors(), y.tensors(), strict=True))
    for c in range(whole):
        for x, y in zip(a.choices[c], b.choices[c], strict=True):
            if x is not None and x.pools is not None:
                assert all(torch.equal(s, t) for s, t in zip(x.pools, y.pools, strict=True))
            if x is not None and x.experts is not None:
                assert torch.equal(x.experts, y.experts)
    for x, y in zip(a.carries[-1], b.carries[-1], strict=True):
        if isinstance(x, DsaCarry):
            for r, s in zip(x.rows, y.rows, strict=True):
                assert torch.equal(r.latents.rows[: whole * chunk], s.latents.rows[: whole * chunk])


@pytest.mark.parametrize("chunk", [96, 101])
def test_a_kept_carry_holds_no_more_than_its_own_rows(model: Hybrid, chunk: int) -> None:
    """A view of a chunk's last rows would keep the whole chunk alive, once per chunk of the window."""
    tape = forward_sweep(model, windows(700, 413)[0], bounds(700, chunk))
    for carry in tape.carries[1:]:
        for layer in carry:
            if isinstance(layer, DsaCarry):
                assert all(t.untyped_storage().nbytes() == t.nbytes for t in layer.tensors())


def test_an_older_prefix_is_a_value(model: Hybrid) -> None:
    """Extending a prefix twice from the same place leaves both results and the original alone."""
    carry = model.initial_carry(1, 8)
    layer = model.config.dsa_layers[0]
    old = carry[layer].rows[0].latents
    width = old.storage.rows.shape[1]
    first = old.extend(torch.ones(5, width), 16)
    second = old.extend(torch.full((3, width), 2.0), 16)
    longer = first.extend(torch.full((40, width), 3.0), 16)
    assert old.length == 0
    assert (first.rows == 1).all() and len(first.rows) == 5
    assert (second.rows == 2).all() and len(second.rows) == 3
    assert (longer.rows[:5] == 1).all() and (longer.rows[5:] == 3).all()
