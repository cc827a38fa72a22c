"""Opens a model folder: config, class, weights."""

from __future__ import annotations

from pathlib import Path

import torch

from rtp_llm.attention import explain as explain_attention
from rtp_llm.device import Device, Support
from rtp_llm.layers import finish_loading, shorten_lookups
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.dummy import draw_weights
from rtp_llm.loader.progress import Progress, SilentProgress
from rtp_llm.loader.stream import load_weights
from rtp_llm.models.causal_lm import CausalLM, ModelOptions
from rtp_llm.models.config import ModelConfig, UnsupportedModelError, read_model_config
from rtp_llm.models.registry import model_class

_CAPABILITIES = {"none": None, "int8": "int8_weights"}


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
) -> CausalLM:
    """The model in a Hugging Face folder, ready to run on `device`.

    `quantization` ("none" or "int8") happens while loading; `max_seq_len` bounds the positions
    (None: the config's max_position_embeddings); `block_size` and `kv_cache_dtype` ("auto" or
    "fp8_e4m3") are those of the KV cache; with `load_format` "dummy" no weight is read: they are
    random. Raises UnsupportedModelError, ModelConfigError, CheckpointError or WeightError, each
    naming the cause.
    """
    config = read_model_config(path)
    positions = max_seq_len or config.max_position_embeddings
    options = _options(device, dtype, positions, quantization, block_size, kv_cache_dtype)
    _check(config, options, device)
    checkpoint = None if load_format == "dummy" else Checkpoint.open(path)
    model = model_class(config.architecture)(config, options)
    progress = progress or SilentProgress()
    if checkpoint is None:
        draw_weights(model, progress)
    else:
        load_weights(model, checkpoint, _ignored(model, config), progress, device)
    finish_loading(model)
    shorten_lookups(model)
    return model.eval()


def _ignored(model: CausalLM, config: ModelConfig) -> tuple[str, ...]:
    """Endings of the names that a checkpoint may hold and the model has no use for."""
    tied = ("lm_head.weight",) if config.tie_word_embeddings else ()
    return (*model.IGNORED_WEIGHTS, *tied)


def explain(
    path: str | Path,
    *,
    device: Device,
    dtype: torch.dtype | None = None,
    quantization: str = "none",
    block_size: int = 16,
    kv_cache_dtype: str = "auto",
) -> str:
    """What would run and why: device, model, number type, attention backend, the others' reasons.

    Reads config.json and the headers of the weights only; raises as load_model does.
    """
    config = read_model_config(path)
    options = _options(
        device,
        dtype or config.dtype,
        config.max_position_embeddings,
        quantization,
        block_size,
        kv_cache_dtype,
    )
    _check(config, options, device)
    checkpoint = Checkpoint.open(path)
    kept = _name(options.dtype)
    if quantization != "none":
        kept += f", linear weights {quantization}"
    return "\n".join(
        [
            f"device: {device.description()}",
            f"model: {config.architecture}, {config.num_layers} layers, "
            f"context {config.max_position_embeddings} (at most {config.context_limit})",
            f"weights: {checkpoint.num_bytes / 2**20:.1f} MiB in files, kept as {kept}",
            f"KV cache: {config.kv_bytes_per_token(options.kv_dtype)} bytes per token",
            explain_attention(options.attention(config)),
            "not on this device:",
            *(f"  {feature}: {reason}" for feature, reason in device.refused.items()),
        ]
    )


def _options(
    device: Device,
    dtype: torch.dtype,
    positions: int,
    quantization: str,
    block_size: int,
    kv_cache_dtype: str,
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
    if options.num_positions > config.context_limit:
        raise UnsupportedModelError(
            f"max_seq_len {options.num_positions} is longer than the {config.context_limit} "
            "positions of the model. Lower --max-seq-len."
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
