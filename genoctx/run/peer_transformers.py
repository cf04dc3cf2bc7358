"""Hugging Face's ``glm5_next`` as a peer to measure against: the extra ``hf``, imported here alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genoctx.errors import UsageError

# their class holds a vision tower too: the smallest there is, outside of what is measured
_VISION = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "projection_intermediate_size": 8,
    "num_heads": 1,
    "image_size": 28,
    "patch_size": 14,
}
_NEVER = 1 << 30  # ids of image tokens: none occurs


def _transformers() -> Any:
    # with fla installed they call its Triton kernels on a CPU as well, and fail; this is their plain path
    if not torch.cuda.is_available():
        sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        import transformers
        from transformers.models.glm5_next import modeling_glm5_next
    except ImportError as error:
        raise UsageError(
            "transformers with glm5_next is not installed", "install it: pip install 'genoctx[hf]'"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers, modeling_glm5_next


def is_installed() -> bool:
    """Whether the extra is there."""
    try:
        _transformers()
    except UsageError:
        return False
    return True


def load_peer(checkpoint: Path) -> Any:
    """Their model from a folder of ``save_weights``, float32; eager attention, their fastest on a CPU."""
    transformers, _ = _transformers()
    raw = json.loads((checkpoint / "config.json").read_text())
    vision = _VISION | {"out_hidden_size": raw["text_config"]["hidden_size"]}
    tokens = {f"{kind}_token_id": _NEVER for kind in ("image", "video")}
    config = transformers.AutoConfig.for_model(**(raw | {"vision_config": vision} | tokens))
    return transformers.Glm5NextForConditionalGeneration.from_pretrained(
        checkpoint, config=config, dtype=torch.float32, attn_implementation="eager"
    )


def peer_step(model: Any, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[float, float]:
    """Forward and backward of the mean nats per target; returns it and the gradient norm."""
    model.zero_grad()
    logits = model(input_ids=tokens_BT, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=-100)
    torch.autograd.backward(loss)
    squares = [p.grad.square().sum(dtype=torch.float64) for p in model.parameters() if p.grad is not None]
    return float(loss), float(torch.stack(squares).sum().sqrt())


def kda_fallback() -> Callable[..., Tensor]:
    """Their KDA in plain torch: ``f(q, k, v, g, beta)`` of [B, T, H, K], q without its scale."""
    _, module = _transformers()

    def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return module.chunk_kimi_delta_attention(q, k, v, g=g, beta=beta)[0]

    return run
