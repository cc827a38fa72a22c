# SPDX-License-Identifier: Apache-2.0
"""The config.json that a folder in Mistral's own layout would have, from its params.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtp_llm.model_folder import read_json, shown
from rtp_llm.models.raw_config import ModelConfigError
from rtp_llm.models.refusals import refuse

_ROW = "Mistral's own layout"
_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "tied_embeddings": "tie_word_embeddings",
    "dtype": "dtype",
}
_NEEDED = ("dim", "n_layers", "n_heads", "hidden_dim", "vocab_size")
# Nothing in the file may say how long contexts are.
_CONTEXT = 128_000
_REFUSED = ("qk_nope_head_dim", "use_biases")
_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_SCHEMES = (None, "TENSOR", "NO_SCALES")


def params_values(file: Path) -> Mapping[str, Any]:
    """Keys and values of config.json; of a multimodal model, those of its text part.

    Raises UnsupportedModelError for what is not implemented, and ModelConfigError.
    """
    params = read_json(file, required=True)
    refused = [key for key in _REFUSED if params.get(key)]
    if refused or params.get("model_type", "transformer") != "transformer":
        raise refuse(_ROW, f"{file} has {', '.join(refused) or shown(params['model_type'])}")
    for key in _NEEDED:
        if params.get(key) is None:
            raise ModelConfigError(f"{file}: {key} is missing")
    values = {ours: params[key] for key, ours in _NAMES.items() if params.get(key) is not None}
    length = params.get("max_position_embeddings") or params.get("max_seq_len") or _CONTEXT
    values = {
        "dtype": "bfloat16",
        "num_key_value_heads": params["n_heads"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": length,
        "hidden_act": params.get("activation") or "silu",
        "sliding_window": _window(file, params.get("sliding_window")),
        **values,
        **_experts(file, params.get("moe")),
    }
    if yarn := params.get("yarn"):
        values["rope_scaling"] = _rope_scaling(file, yarn)
    if scaling := params.get("llama_4_scaling"):
        values |= _growing_queries(file, scaling, values)
    if quantization := params.get("quantization"):
        values["quantization_config"] = _quantization(file, quantization)
    return values


def head_dim(folder: Path) -> int:
    """The size of a head; ModelConfigError if params.json does not say it."""
    params = read_json(folder / "params.json", required=True)
    dim, heads, size = (params.get(key) for key in ("dim", "n_heads", "head_dim"))
    if size is None and isinstance(dim, int) and isinstance(heads, int) and heads > 0:
        size = dim // heads
    if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2:
        raise ModelConfigError(f"{folder / 'params.json'}: heads of {shown(size)} channels")
    return size


def _window(file: Path, given: Any) -> int | None:
    if given is None or isinstance(given, int):
        return given or None
    raise refuse(_ROW, f"{file} has sliding_window {shown(given)}")


def _experts(file: Path, given: Any) -> dict[str, Any]:
    if not given:
        return {"architectures": ["MistralForCausalLM"]}
    known = {"num_experts", "num_experts_per_tok"}
    if not isinstance(given, Mapping) or not known.issuperset(given):
        raise refuse(_ROW, f"{file} has moe {shown(given)}")
    names = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
    found = {names[key]: value for key, value in given.items()}
    return {"architectures": ["MixtralForCausalLM"], **found}


def _rope_scaling(file: Path, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not {*_YARN, "apply_scale"}.issuperset(given):
        raise refuse(_ROW, f"{file} has yarn {shown(given)}")
    scaling = {_YARN[key]: value for key, value in given.items() if key in _YARN}
    if given.get("apply_scale") is False:
        scaling["attention_factor"] = 1.0
    return {"rope_type": "yarn", **scaling}


def _growing_queries(file: Path, given: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Ministral 3, whose growth and stretched positions count from the same length."""
    rope, key = values.get("rope_scaling") or {}, "original_max_position_embeddings"
    dense = values["architectures"] == ["MistralForCausalLM"]
    known = isinstance(given, Mapping) and {"beta", key}.issuperset(given)
    if not known or not dense or not rope or given.get(key) != rope.get(key):
        raise refuse(_ROW, f"{file} has llama_4_scaling {shown(given)}")
    rope = {**rope, "llama_4_scaling_beta": given.get("beta")}
    return {"architectures": ["Ministral3ForCausalLM"], "rope_scaling": rope}


def _quantization(file: Path, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        method = str(given.get("quant_method", "")).lower().replace("_", "-")
        if method == "compressed-tensors":
            return {**given, "quant_method": method}
        scheme = given.get("qscheme_act")
        if given.get("qformat_weight") == "fp8_e4m3" and scheme in _SCHEMES:
            dynamic = "dynamic" if scheme == "NO_SCALES" else "static"
            return {"quant_method": "fp8", "activation_scheme": dynamic}
    raise refuse(_ROW, f"{file} has quantization {shown(given)}")
