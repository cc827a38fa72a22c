"""Opens a model folder: config, class, weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from rtp_llm.device import Device, Support
from rtp_llm.layers import finish_loading, shorten_lookups
from rtp_llm.layers.moe import ExpertHooks
from rtp_llm.layers.moe import explain as explain_experts
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.dummy import draw_weights
from rtp_llm.loader.fp8_weights import (
    describe,
    fp8_weights,
    tell_of_dequantized,
    why_not_multiplied,
)
from rtp_llm.loader.plan import check_weights
from rtp_llm.loader.progress import Progress, SilentProgress
from rtp_llm.loader.stream import load_weights
from rtp_llm.loader.tied import resolve_tied
from rtp_llm.models.causal_lm import CausalLM, ModelOptions
from rtp_llm.models.config import ModelConfig, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.moe import local_experts
from rtp_llm.models.refusals import refuse
from rtp_llm.models.registry import model_class

_CAPABILITIES = {
    "none": None,
    "int8": "int8_weights",
    "w8a8_int8": "int8_products",
    "fp8": "fp8_products",
}


def load_model(
    path: str | Path,
    *,
    device: Device,
    dtype: torch.dtype,
    quantization: str = "none",
    progress: Progress | None = None,
    max_seq_len: int | None = None,
    block_size: int = 16,
    load_format: str = "safetensors",
    kv_cache_dtype: str = "auto",
    attention_backend: str = "auto",
    experts: ExpertHooks | None = None,
    moe_strategy: str = "auto",
) -> CausalLM:
    """The model in a Hugging Face folder, ready to run on `device`.

    `quantization` ("none", "int8", "w8a8_int8" or "fp8") happens while loading; `max_seq_len`
    bounds the positions (None: the config's max_position_embeddings); `block_size` and
    `kv_cache_dtype` ("auto" or "fp8_e4m3") are those of the KV cache; with `load_format` "dummy"
    no weight is read: they are random. `attention_backend` and `moe_strategy` are the settings of
    these names; `experts`: where they are.
    Raises UnsupportedModelError, ModelConfigError, CheckpointError, WeightError or NoChoiceError.
    """
    config = read_model_config(path)
    positions = max_seq_len or config.max_position_embeddings
    options = _options(
        device, dtype, positions, quantization, block_size, kv_cache_dtype, attention_backend
    )
    _check(config, options, device)
    checkpoint = None
    if load_format != "dummy":
        config, checkpoint = resolve_tied(config, _open(path, config), dtype)
    options = _with_stored(
        replace(options, experts=experts, moe_strategy=moe_strategy), config, checkpoint, device
    )
    return _filled(config, options, checkpoint, progress or SilentProgress(), device)


def _open(path: str | Path, config: ModelConfig) -> Checkpoint:
    try:
        return Checkpoint.open(path)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{config.architecture}: {error}") from error


def _filled(
    config: ModelConfig,
    options: ModelOptions,
    checkpoint: Checkpoint | None,
    progress: Progress,
    device: Device,
) -> CausalLM:
    """The model with its weights, ready to run; all that can be checked before it takes memory."""
    local_experts(config, options.layer_options())
    if checkpoint is not None:
        check_weights(config, options, checkpoint)
    model = model_class(config.architecture)(config, options)
    if checkpoint is None:
        draw_weights(model, progress)
    else:
        tell_of_dequantized(model, options.dtype, device)
        load_weights(model, checkpoint, progress, device)
    finish_loading(model)
    shorten_lookups(model)
    return model.eval()


def explain(
    path: str | Path,
    *,
    device: Device,
    dtype: torch.dtype | None = None,
    quantization: str = "none",
    block_size: int = 16,
    kv_cache_dtype: str = "auto",
    attention_backend: str = "auto",
    moe_strategy: str = "auto",
) -> str:
    """What would run and why: device, model, number type, attention backend, the others' reasons.

    Reads config.json and the headers of the weights only; raises as load_model does.
    """
    config = read_model_config(path)
    dtype, positions = dtype or config.dtype, config.max_position_embeddings
    options = _options(
        device, dtype, positions, quantization, block_size, kv_cache_dtype, attention_backend
    )
    _check(config, options, device)
    checkpoint = _open(path, config)
    options = _with_stored(replace(options, moe_strategy=moe_strategy), config, checkpoint, device)
    kept = _name(options.dtype) + describe(checkpoint, options.dtype, device)
    if quantization != "none":
        kept += f", linear weights {quantization}"
    experts = local_experts(config, options.layer_options())
    return "\n".join(
        [
            f"device: {device.description()}",
            f"model: {config.architecture}, {config.num_layers} layers, "
            f"context {config.max_position_embeddings} (at most {config.context_limit})",
            f"weights: {checkpoint.num_bytes / 2**20:.1f} MiB in files, kept as {kept}",
            *_explain_mixers(config, options),
            *([] if experts is None else [explain_experts(experts, moe_strategy)]),
            "not on this device:",
            *(f"  {feature}: {reason}" for feature, reason in device.refused.items()),
        ]
    )


def _explain_mixers(config: ModelConfig, options: ModelOptions) -> list[str]:
    """What the cache holds, each group where there are several, and the backends."""
    model = model_class(config.architecture)
    cache = model.groups_of(config, options.kv_dtype)
    groups = cache.groups if len(cache.groups) > 1 else ()
    return [
        f"KV cache: {cache.token_bytes} bytes per token",
        *(f"  {group}" for group in groups),
        model.explain_backends(config, options),
    ]


def _with_stored(
    options: ModelOptions, config: ModelConfig, checkpoint: Checkpoint | None, device: Device
) -> ModelOptions:
    """`options` and what the checkpoint stores in FP8; without one, random weights in its form."""
    if checkpoint is not None:
        return replace(options, fp8_weights=fp8_weights(config, checkpoint))
    if config.stored_as_fp8 and not why_not_multiplied(options.dtype, device):
        return replace(options, quantization="fp8")
    return options


def _options(
    device: Device,
    dtype: torch.dtype,
    positions: int,
    quantization: str,
    block_size: int,
    kv_cache_dtype: str,
    attention_backend: str,
) -> ModelOptions:
    return ModelOptions(
        dtype,
        device.name,
        device.torch_device,
        positions,
        quantization,
        block_size,
        kv_cache_dtype,
        device.capability(),
        fp8_products=bool(device.supports("fp8_products")),
        attention_backend=attention_backend,
    )


def _check(config: ModelConfig, options: ModelOptions, device: Device) -> None:
    """Raise UnsupportedModelError unless the device and the model can do what `options` say."""
    if options.quantization not in _CAPABILITIES:
        known = ", ".join(_CAPABILITIES)
        raise UnsupportedModelError(
            f"quantization {options.quantization!r} is not known; valid: {known}"
        )
    features = {"dtype": _name(options.dtype), "quantization": _CAPABILITIES[options.quantization]}
    for setting, feature in features.items():
        answer = device.supports(feature) if feature else Support.yes()
        if not answer:
            raise UnsupportedModelError(
                f"{feature} is not supported on {device.name}: {answer.reason}. Change --{setting}."
            )
    if options.quantization == "fp8" and options.dtype is not torch.bfloat16:
        found = f"--dtype {_name(options.dtype)}"
        raise refuse("fp8 with another dtype", found, config.architecture)
    if options.quantization in ("int8", "w8a8_int8") and config.stored_as_fp8:
        found = f"--quantization {options.quantization}"
        raise refuse("quantized twice", found, config.architecture)
    if options.num_positions > config.context_limit:
        raise UnsupportedModelError(
            f"max_seq_len {options.num_positions} is longer than the {config.context_limit} "
            "positions of the model. Lower --max-seq-len."
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
