"""The hub's ``config.json``: what it may say, read and written. No torch here.

Field names are those of the published ``text_config`` (spec section 1.1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from genoctx.errors import ConfigError
from genoctx.model.config import DSA, KDA, ModelConfig

FLOAT8_BLOCK = (128, 128)
"""Rows and columns that share a scale in the published checkpoint (spec section 4.3)."""

# What a hub config may say about parts that this model has in one form only.
_FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("glm5_next", "glm5_next_text"),
    "hidden_act": ("silu",),
    "qk_rope_head_dim": (0,),
    "n_group": (1,),
    "topk_group": (1,),
    "norm_topk_prob": (True,),
    "scoring_func": ("sigmoid",),
    "attention_bias": (False,),
    "tie_word_embeddings": (False,),
    "mhc": (True,),
    "index_kpool_compress": (True,),
    "index_kpool_always_select_tail": (True,),
}


def from_hub(raw: Mapping[str, Any]) -> ModelConfig:
    """Read a hub ``config.json`` (flat, or nested under ``text_config``).

    ``linear_attn_config`` overrides the flat ``linear_*`` fields; ``head_dim`` and everything that
    does not shape the text model (vision, quantisation, MTP) is ignored (spec section 1.1). Lists with an
    entry a layer may be longer than the model: a slice of a checkpoint often keeps those of the whole.
    Raises ConfigError for a config that asks for what the model does not do.
    """
    text = dict(raw.get("text_config", raw))
    linear = text.get("linear_attn_config") or {}
    for ours, theirs in (
        ("linear_num_heads", "num_heads"),
        ("linear_head_dim", "head_dim"),
        ("linear_conv_kernel_dim", "short_conv_kernel_size"),
        ("linear_lower_bound", "gate_lower_bound"),
    ):
        if theirs in linear:
            text[ours] = linear[theirs]
    _refuse_other_forms(text)
    known = {f.name for f in fields(ModelConfig)}
    picked: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in text.items() if k in known
    }
    picked.setdefault("linear_gate_low_rank", picked.get("linear_head_dim", ModelConfig.linear_head_dim))
    layers = picked.get("num_hidden_layers", ModelConfig.num_hidden_layers)
    if not picked.get("layer_types") and "full_attn_layers" in linear:
        full = set(linear["full_attn_layers"])
        picked["layer_types"] = tuple(DSA if i in full else KDA for i in range(layers))
    for name in ("layer_types", "mlp_layer_types"):
        picked[name] = tuple(picked.get(name) or ())[:layers]
    if "index_kpool" not in picked:
        raise ConfigError(
            "the hub config names no index_kpool", "add it: the class default differs from the released model"
        )
    return ModelConfig(**picked)


def _refuse_other_forms(text: Mapping[str, Any]) -> None:
    """ConfigError that lists every field whose value stands for another kind of model."""
    problems = [
        f"{name} is {text[name]!r}, this model has {' or '.join(map(repr, allowed))}"
        for name, allowed in _FIXED.items()
        if name in text and text[name] not in allowed
    ]
    if "shared" in (text.get("indexer_types") or ()):
        problems.append("indexer_types has 'shared', this model has an indexer in every DSA layer")
    if text.get("linear_lower_bound", 0.0) is None:
        problems.append("the KDA gate has no lower bound, this model scales its gate by one")
    if problems:
        raise ConfigError("; ".join(problems), "take a checkpoint of the GLM-5.3-Flash family (glm5_next)")


def to_hub(config: ModelConfig) -> dict[str, Any]:
    """A ``config.json`` that ``from_hub`` and Hugging Face both read."""
    text = config.to_dict()
    low_rank = text.pop("linear_gate_low_rank")
    if low_rank != config.linear_head_dim:
        text["linear_gate_low_rank"] = low_rank
    text |= {
        "model_type": "glm5_next_text",
        "num_key_value_heads": config.num_attention_heads,
        "qk_rope_head_dim": 0,
        "linear_attn_config": {
            "num_heads": config.linear_num_heads,
            "head_dim": config.linear_head_dim,
            "short_conv_kernel_size": config.linear_conv_kernel_dim,
            "gate_lower_bound": config.linear_lower_bound,
            "kda_layers": list(config.kda_layers),
            "full_attn_layers": list(config.dsa_layers),
        },
    }
    return {"model_type": "glm5_next", "text_config": text}


def read_hub_config(path: Path) -> ModelConfig:
    """``from_hub`` of a file; raises ConfigError with the file's name when it is not usable."""
    raw = read_hub_json(path)
    try:
        return from_hub(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", error.hint) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: a value of the wrong kind ({error})", "take the config.json of the checkpoint"
        ) from error


def read_hub_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; ConfigError where there is none."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"cannot read model config {path}: {what}", "a checkpoint has its config.json beside the weights"
        ) from error
    if not isinstance(raw, dict):
        raise ConfigError(
            f"model config {path} is not a JSON object", "take the config.json of the checkpoint"
        )
    return raw


def float8_block(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of a block of float8 numbers, by a hub config's ``quantization_config``."""
    found = raw.get("quantization_config") or raw.get("text_config", {}).get("quantization_config") or {}
    rows, columns = found.get("weight_block_size") or FLOAT8_BLOCK
    return int(rows), int(columns)
