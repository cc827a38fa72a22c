# SPDX-License-Identifier: Apache-2.0
"""Detects config.json features that are refused; the messages are in config/refusals.py."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from rtp_llm.config.refusal import Refusal
from rtp_llm.config.refusals import find_refusal
from rtp_llm.layers.weights.stored_config import UnsupportedFormatError, read_stored_modules
from rtp_llm.model_folder import name_of, shown
from rtp_llm.models.family_fields import unread_field

AREA = "model"
ROPE_STYLES = ("default", "linear", "dynamic", "llama3", "yarn")
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh")
LAYER_TYPES = ("full_attention", "sliding_attention")
# Architectures for which linear_attention layers and partial rotation are supported.
HYBRID_ARCHITECTURES = (
    "GraniteMoeHybridForCausalLM",
    "NemotronHForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
# The language models that Mistral3ForConditionalGeneration may have, by their model_type.
_MISTRAL3_TEXTS = (None, "ministral3", "mistral", "mistral3")
# Architectures all of whose layers have an indexer, which is a layer type of its own there.
INDEXER_ARCHITECTURES = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
# The names under which decoders are served whose config.json says that they read both ways.
BIDIRECTIONAL_ARCHITECTURES = dict.fromkeys(
    ("Qwen2ForCausalLM", "Qwen2Model"), "Qwen2BidirectionalModel"
)
# Those with rope settings for each layer type, and with rope type ntk.
LAYER_ROPE_FAMILIES = ("Gemma3", "Gemma4", "ModernBert", "Olmo3")
# Those that may rotate a part of each head.
PARTIAL_ROTARY_FAMILIES = ("Glm4", "MiniMaxM2", "Phi3")
# Those that may cap scores and logits.
CAPPED_FAMILIES = ("Gemma2", "Gemma3", "Gemma4")
# Rope types that one family has.
FAMILY_ROPE_STYLES = {"ntk": "New", "longrope": "Phi3"}
EXPERT_ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "GraniteMoeForCausalLM",
    "GptOssForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MixtralForCausalLM",
    "NemotronHForCausalLM",  # which names its own when it has layers of them
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
DTYPES = ("float32", "bfloat16", "float16")

STORED_FORMAT_ROWS = (
    "quantized checkpoint",
    "FP8 checkpoint with other scales",
    "FP8 checkpoint of other blocks",
)

# Families with less similar names are unrelated (GPT2 and Qwen2Moe).
_NEAR = 0.6

Values = Mapping[str, Any]


class UnsupportedModelError(ValueError):
    """The model needs an unsupported feature; the message says why and what to do."""


def refuse(name: str, detail: str = "", architecture: str = "") -> UnsupportedModelError:
    """The error for row `name` of area "model"; `detail` says what was found in the folder.

    The message begins with the `architecture`, if known.
    """
    message = f"{architecture}: {_row(name).message}" if architecture else _row(name).message
    return UnsupportedModelError(f"{message} ({detail})" if detail else message)


def check_supported(values: Values, architectures: tuple[str, ...]) -> None:
    """Raise UnsupportedModelError for the first thing in `values` (a config.json) that is refused.

    `architectures` are the names the registry knows.
    """
    named = architecture_of(values)
    found = ((name, detail) for name, find in CHECKS.items() if (detail := find(values)))
    name, detail = next(found, ("", ""))
    if named not in architectures:
        raise _unknown(named, name, detail, architectures)
    if name:
        raise refuse(name, f"config.json: {detail}", named)


def _unknown(
    named: str, name: str, detail: str, architectures: tuple[str, ...]
) -> UnsupportedModelError:
    """The error for an architecture that is not in the registry; `name`: a row that applies."""
    row = _row(name or "unknown architecture")
    reason = f"{row.reason} (config.json: {detail})" if detail else row.reason
    likely = sorted(architectures, key=lambda other: -_likeness(named, other))
    is_near = _likeness(named, likely[0]) >= _NEAR
    known = f"Supported, the nearest first: {', '.join(likely)}."
    if not is_near:
        known = f"Supported: {', '.join(architectures)}."
    return UnsupportedModelError(f"{named} is not supported: {reason} {known}")


def _likeness(one: str, other: str) -> float:
    """The similarity of two architectures' family names, 0 to 1."""
    first, second = map(_family, (one, other))
    return difflib.SequenceMatcher(a=first, b=second).ratio()


def _family(architecture: str) -> str:
    return architecture.partition("For")[0].removesuffix("Model").lower()


def _row(name: str) -> Refusal:
    row = find_refusal(AREA, name)
    if row is None:
        raise KeyError(f"no refusal {name!r} in area {AREA!r}")
    return row


def architecture_of(values: Values) -> str:
    """The first entry of `architectures`, or a text saying that there is none."""
    listed = values.get("architectures")
    if not isinstance(listed, list) or not listed:
        return "A model with no architectures entry"
    first = listed[0]
    return name_of(first) if isinstance(first, str) and first else shown(first)


def rope_settings(values: Values) -> dict[str, Any]:
    """The rope dictionary: `rope_scaling`, else `rope_parameters` (transformers 5), else empty."""
    found = values.get("rope_scaling") or values.get("rope_parameters") or {}
    # A value that is not a dictionary has no known type, so it is refused with its text.
    return dict(found) if isinstance(found, Mapping) else {"rope_type": shown(found)}


def rope_style(values: Values) -> str:
    settings = rope_settings(values)
    style = _text(settings.get("rope_type") or settings.get("type") or "default")
    return "longrope" if style == "su" else style  # as the first Phi-3 had it


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _keys(*names: str) -> Callable[[Values], str]:
    """Return a function that finds the first of `names` with a truthy value."""

    def find(values: Values) -> str:
        return next((f"{name} is set" for name in names if values.get(name)), "")

    return find


def _experts(values: Values) -> str:
    if architecture_of(values) in EXPERT_ARCHITECTURES:
        return ""
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    found = _keys(*counts)(values)
    return found or ("a Moe architecture" if "Moe" in architecture_of(values) else "")


def _two_way(values: Values) -> str:
    known = architecture_of(values) in BIDIRECTIONAL_ARCHITECTURES.values()
    return "is_causal is false" if values.get("is_causal") is False and not known else ""


def _per_layer_rope(values: Values) -> str:
    if architecture_of(values).startswith(LAYER_ROPE_FAMILIES):
        return ""
    nested = [key for key, value in rope_settings(values).items() if isinstance(value, Mapping)]
    return f"rope settings for {', '.join(map(name_of, nested[:4]))}" if nested else ""


def _rope_style(values: Values) -> str:
    style = rope_style(values)
    family = FAMILY_ROPE_STYLES.get(style)
    if family is not None and architecture_of(values).startswith(family):
        return ""
    return "" if style in ROPE_STYLES else f"rope_type {shown(style)}"


def _partial_rotary(values: Values) -> str:
    factor = rope_settings(values).get("partial_rotary_factor")
    factor = values.get("partial_rotary_factor") if factor is None else factor
    named = architecture_of(values)
    known = named in HYBRID_ARCHITECTURES or named.startswith(PARTIAL_ROTARY_FAMILIES)
    return "" if known or factor in (None, 1, 1.0) else f"partial_rotary_factor {shown(factor)}"


def _caps(values: Values) -> str:
    known = architecture_of(values).startswith(CAPPED_FAMILIES)
    return "" if known else _keys("attn_logit_softcapping", "final_logit_softcapping")(values)


def _activation(values: Values) -> str:
    """Refused names; families that have `hidden_activation` do not read the other key."""
    key = "hidden_activation" if values.get("hidden_activation") else "hidden_act"
    name = values.get(key)
    return "" if name is None or name in ACTIVATIONS else f"{key} {shown(name)}"


def _named(*families: str) -> Callable[[Values], str]:
    """Return a function that finds an architecture whose name begins with one of `families`."""

    def find(values: Values) -> str:
        named = architecture_of(values)
        return named if named.startswith(families) else ""

    return find


def _mistral3_text(values: Values) -> str:
    kind, named = values.get("model_type"), architecture_of(values)
    known = named != "Mistral3ForConditionalGeneration" or kind in _MISTRAL3_TEXTS
    return "" if known else f"model_type {shown(kind)} of its text_config"


def _layer_types(values: Values) -> str:
    listed = values.get("layer_types")
    hybrid = architecture_of(values) in HYBRID_ARCHITECTURES
    kinds = listed if isinstance(listed, list) and not hybrid else []
    indexed = architecture_of(values) in INDEXER_ARCHITECTURES
    known = ("indexed_attention",) if indexed else LAYER_TYPES
    other = [kind for kind in kinds if kind not in known]
    return f"layer type {shown(other[0])}" if other else ""


def _unread_field(values: Values) -> str:
    return unread_field(architecture_of(values), values, rope_settings(values))


def _dtype(values: Values) -> str:
    name = _text(values.get("dtype") or values.get("torch_dtype") or "float32")
    return "" if name.removeprefix("torch.") in DTYPES else f"dtype {name_of(name)}"


def _stored(row: str) -> Callable[[Values], str]:
    """Return a function that finds what of quantization_config is refused by `row`."""

    def find(values: Values) -> str:
        try:
            read_stored_modules(values)
        except UnsupportedFormatError as error:
            return error.found if error.row == row else ""
        return ""

    return find


# Row of the table -> what in a config.json triggers it ("" = nothing). The first match wins.
CHECKS: dict[str, Callable[[Values], str]] = {
    **{name: _stored(name) for name in STORED_FORMAT_ROWS},
    "Gemma 3n": _named("Gemma3n"),
    "drafter of Gemma 4": _named("Gemma4Assistant"),
    "DeepSeek-V4": _named("DeepseekV4"),
    "GLM-5.3-Flash": _named("Glm5Next"),
    "Kimi Linear and Kimi-K3": _named("KimiLinear", "KimiK3"),
    "MiniMax-M3": _named("MiniMaxM3"),
    "other text part of Mistral 3": _mistral3_text,
    "Qwen3.8-Flash-Next": _named("Qwen4Exp"),
    "mixture of experts": _experts,
    "multimodal model": _keys("vision_config", "audio_config", "image_token_id", "mm_vision_tower"),
    "encoder-decoder model": _keys("is_encoder_decoder"),
    "is_causal false": _two_way,
    "rope per layer type": _per_layer_rope,
    "other rope type": _rope_style,
    "partial rotary embedding": _partial_rotary,
    "dual chunk attention": _keys("dual_chunk_attention_config"),
    "soft-capped logits": _caps,
    "other activation": _activation,
    "other layer type": _layer_types,
    "other number type": _dtype,
    "field of another family": _unread_field,
}
