"""When a config.json asks for something that is refused; the texts are in config/refusals.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rtp_llm.config.refusals import find_refusal

AREA = "model"
ROPE_STYLES = ("default", "linear", "dynamic", "llama3", "yarn")
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh")
LAYER_TYPES = ("full_attention", "sliding_attention")
EXPERT_ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
)
DTYPES = ("float32", "bfloat16", "float16")
FP8_BLOCK = [128, 128]
FP8_NUMBERS = ("e4m3", "float8_e4m3fn")

Values = Mapping[str, Any]


class UnsupportedModelError(ValueError):
    """The model needs something that is not there yet; the message says why and what to do."""


def refuse(name: str, detail: str = "") -> UnsupportedModelError:
    """The error for row `name` of area "model"; `detail` says what was found in the folder."""
    row = find_refusal(AREA, name)
    if row is None:
        raise KeyError(f"no refusal {name!r} in area {AREA!r}")
    return UnsupportedModelError(f"{row.message} ({detail})" if detail else row.message)


def check_supported(values: Values, architectures: tuple[str, ...]) -> None:
    """Raise UnsupportedModelError for the first thing in `values` (a config.json) that is refused.

    `architectures` are the names the registry knows.
    """
    for name, find in CHECKS.items():
        if detail := find(values):
            raise refuse(name, f"config.json: {detail}")
    named = architecture_of(values)
    if named not in architectures:
        raise refuse(
            "unknown architecture", f"config.json: {named}; known: {', '.join(architectures)}"
        )


def architecture_of(values: Values) -> str:
    """The first entry of `architectures`, or a text saying that there is none."""
    listed = values.get("architectures") or ["no architectures entry"]
    return str(listed[0])


def rope_settings(values: Values) -> dict[str, Any]:
    """The rope dictionary: `rope_scaling`, else `rope_parameters` (transformers 5), else empty."""
    found = values.get("rope_scaling") or values.get("rope_parameters") or {}
    # Something that is no dictionary names no known type, and so is refused with its text.
    return dict(found) if isinstance(found, Mapping) else {"rope_type": repr(found)}


def rope_style(values: Values) -> str:
    settings = rope_settings(values)
    return str(settings.get("rope_type") or settings.get("type") or "default")


def _keys(*names: str) -> Callable[[Values], str]:
    """Finds the first of `names` that has a value other than null, false, zero or empty."""

    def find(values: Values) -> str:
        return next((f"{name} is set" for name in names if values.get(name)), "")

    return find


def _experts(values: Values) -> str:
    if architecture_of(values) in EXPERT_ARCHITECTURES:
        return ""
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    found = _keys(*counts)(values)
    return found or ("a Moe architecture" if "Moe" in architecture_of(values) else "")


def _per_layer_rope(values: Values) -> str:
    nested = [key for key, value in rope_settings(values).items() if isinstance(value, Mapping)]
    return f"rope settings for {', '.join(nested)}" if nested else ""


def _rope_style(values: Values) -> str:
    style = rope_style(values)
    return "" if style in ROPE_STYLES else f"rope_type {style!r}"


def _partial_rotary(values: Values) -> str:
    factor = rope_settings(values).get("partial_rotary_factor")
    factor = values.get("partial_rotary_factor") if factor is None else factor
    return "" if factor in (None, 1, 1.0) else f"partial_rotary_factor {factor}"


def _activation(values: Values) -> str:
    name = values.get("hidden_act") or "silu"
    return "" if name in ACTIVATIONS else f"hidden_act {name!r}"


def _layer_types(values: Values) -> str:
    other = [kind for kind in values.get("layer_types") or () if kind not in LAYER_TYPES]
    return f"layer type {other[0]!r}" if other else ""


def _dtype(values: Values) -> str:
    name = str(values.get("dtype") or values.get("torch_dtype") or "float32")
    return "" if name.removeprefix("torch.") in DTYPES else f"dtype {name}"


def _quantized(values: Values) -> str:
    found = _keys("compression_config")(values)
    method = _quantization(values).get("quant_method")
    if _quantization(values) and method != "fp8":
        return f"quant_method {method!r}"
    return found


def _fp8_scales(values: Values) -> str:
    """Scales for whole tensors, or scales of activations in the checkpoint."""
    found = _quantization(values)
    if found and not found.get("weight_block_size"):
        return "no weight_block_size"
    scheme = found.get("activation_scheme", "dynamic")
    return "" if scheme == "dynamic" else f"activation_scheme {scheme!r}"


def _fp8_blocks(values: Values) -> str:
    found = _quantization(values)
    size, numbers = found.get("weight_block_size"), found.get("fmt", "e4m3")
    if numbers not in FP8_NUMBERS:
        return f"fmt {numbers!r}"
    return "" if not found or size == FP8_BLOCK else f"weight_block_size {size}"


def _quantization(values: Values) -> Mapping[str, Any]:
    found = values.get("quantization_config") or {}
    return found if isinstance(found, Mapping) else {"quant_method": repr(found)}


# Row of the table -> what in a config.json makes it apply ("" = nothing). The first match wins.
CHECKS: dict[str, Callable[[Values], str]] = {
    "quantized checkpoint": _quantized,
    "FP8 checkpoint without block scales": _fp8_scales,
    "FP8 checkpoint of other blocks": _fp8_blocks,
    "mixture of experts": _experts,
    "multimodal model": _keys("vision_config", "audio_config", "image_token_id", "mm_vision_tower"),
    "encoder-decoder model": _keys("is_encoder_decoder"),
    "rope per layer type": _per_layer_rope,
    "other rope type": _rope_style,
    "partial rotary embedding": _partial_rotary,
    "dual chunk attention": _keys("dual_chunk_attention_config"),
    "soft-capped logits": _keys("attn_logit_softcapping", "final_logit_softcapping"),
    "other activation": _activation,
    "other layer type": _layer_types,
    "other number type": _dtype,
}
