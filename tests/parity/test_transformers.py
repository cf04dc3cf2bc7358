"""Our model against Hugging Face's glm5_next itself, where the extra `hf` is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from genoctx.model.weights import load_model

transformers = pytest.importorskip(
    "transformers", minversion="5.16.1", reason="install genoctx[hf] to run it"
)


def test_logits_of_the_tiny_checkpoint(tiny_fixtures: Path) -> None:
    from genoctx.model.config import read_hub_config

    theirs = transformers.Glm5NextForConditionalGeneration.from_pretrained(
        tiny_fixtures / "checkpoint", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ours = load_model(tiny_fixtures / "checkpoint")
    vocabulary = read_hub_config(tiny_fixtures / "checkpoint" / "config.json").vocab_size
    # below the image and video tokens of the fixture (240..245)
    ids = torch.randint(0, vocabulary - 20, (1, 40), generator=torch.Generator().manual_seed(139))
    with torch.no_grad():
        want = theirs(input_ids=ids, use_cache=False).logits
        out = ours(ids, ours.initial_carry(1, 40))
        assert (out.hidden @ ours.lm_head.weight.T - want).abs().max() < 2e-4
