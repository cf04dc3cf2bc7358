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
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4, (2, length), generator=generator)
    tokens[1, 20:150] = 4
    changed = tokens.clone()
    changed[:, prefix:] = torch.randint(0, 5, (2, length - prefix), generator=generator)
    assert not torch.equal(tokens, changed)
    return Batch(tokens, tokens, ("a", "b")), Batch(changed, changed, ("a", "b"))


@pytest.mark.parametrize("chunk", [1, 37, 128, 700])
def test_hidden_states(model: Hybrid, chunk: int) -> None:
    length, prefix = (60, 41) if chunk == 1 else (700, 413)
    before, after = windows(length, prefix) if length > 160 else windows(700, 413)
    if chunk == 1:
        before, after = (
            Batch(b.tokens_BT[:, :length], b.targets_BT[:, :length], b.names) for b in (before, after)
        )
        after.tokens_BT[:, :prefix] = before.tokens_BT[:, :prefix]
        after.tokens_BT[:, prefix:] = (before.tokens_BT[:, prefix:] + 1) % 4
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
