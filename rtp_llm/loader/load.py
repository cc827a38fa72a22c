# SPDX-License-Identifier: Apache-2.0
"""Opens a model folder: config, class, weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.refusals import find_refusal
from rtp_llm.device import Device, Support
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel, planned_rank
from rtp_llm.layers import (
    DivisionError,
    SharedBlocksError,
    finish_loading,
    shorten_lookups,
)
from rtp_llm.layers.moe import ExpertHooks
from rtp_llm.layers.moe import explain as explain_experts
from rtp_llm.layers.weights.fp8_formats import why_not_multiplied
from rtp_llm.layers.weights.stored_format import FormatError
from rtp_llm.loader.cache_scales import cache_scales, explain_scales
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.draft_head import load_vocabulary, with_head
from rtp_llm.loader.draft_model import check_tokens, draft_options
from rtp_llm.loader.dummy import draw_weights
from rtp_llm.loader.explain_layers import explain_layers
from rtp_llm.loader.progress import Progress, SilentProgress
from rtp_llm.loader.resolved import resolve
from rtp_llm.loader.stored_formats import (
    declared_experts,
    describe,
    log_dequantized,
    stored_formats,
)
from rtp_llm.loader.stream import load_weights
from rtp_llm.loader.tied import resolve_tied, without_head
from rtp_llm.loader.weight_checks import check_weights
from rtp_llm.models.causal_lm import CausalLM, ModelOptions
from rtp_llm.models.config import ModelConfig, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.drafts.draft_model import WithDraftModel, cache_groups_of
from rtp_llm.models.moe import local_experts
from rtp_llm.models.refusals import refuse
from rtp_llm.models.registry import model_class
from rtp_llm.models.stages import stage_layers

_CAPABILITIES = {
    "none": None,
    "int8": "int8_weights",
    "w8a8_int8": "int8_products",
    "int4": "int4_weights",
    "fp8": "fp8_products",
}


def load_model(
    path: str | Path,
    *,
    device: Device,
    settings: ModelSettings,
    experts: ExpertHooks | None = None,
    tensor_parallel: TensorParallel = SINGLE,
    stage: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
    mtp: bool = False,
    eagle3: str | Path = "",
    draft_model: str | Path = "",
) -> CausalLM:
    """Load the model in a Hugging Face folder or GGUF file, ready to run on `device`.

    `experts`: hooks for where experts are. `tensor_parallel`: load this rank's part of each layer;
    all ranks must call this. `stage`: the index and number of pipeline stages; only the layers of
    that stage are loaded. Drafts come from the model's multi-token prediction layer (`mtp`), from
    the head in the folder `eagle3`, or from the model in the folder `draft_model`.
    Raises UnsupportedModelError, ModelConfigError, CheckpointError, WeightError or NoChoiceError.
    """
    config = read_model_config(path, mtp=mtp, eagle3=eagle3, draft_model=draft_model)
    options = _options(settings, config, device)
    options = replace(options, experts=experts, tensor_parallel=tensor_parallel)
    progress = progress or SilentProgress()
    if config.draft_model is None:
        return _loaded(path, config, options, progress, device, stage)
    # Load the smaller model first, so that errors in it are found early.
    check_tokens(path, draft_model)
    own = draft_options(options, config.draft_model)
    draft = _loaded(draft_model, config.draft_model, own, progress, device)
    both = WithDraftModel(_loaded(path, config, options, progress, device), draft)
    shorten_lookups(both)
    return both.eval()


def _loaded(
    path: str | Path,
    config: ModelConfig,
    options: ModelOptions,
    progress: Progress,
    device: Device,
    stage: tuple[int, int] = (0, 1),
) -> CausalLM:
    """Load one model, ready to run."""
    checkpoint = None
    if options.settings.load_format != "dummy":
        config, checkpoint = _checkpoint(path, config, options)
    else:
        config = without_head(config, options.settings)
    options, checkpoint = _with_stored(options, config, checkpoint, device)
    number, stages = stage
    if stages > 1:
        options = replace(options, stage=_divided(config, options, stages)[number])
    return _filled(config, options, checkpoint, progress, device)


def _checkpoint(
    path: str | Path, config: ModelConfig, options: ModelOptions
) -> tuple[ModelConfig, Checkpoint]:
    """Open the checkpoint in the folder; returns it with the resulting config."""
    config, checkpoint = resolve_tied(config, _open(path, config), options.dtype)
    if checkpoint.formats and options.settings.quantization != "none":
        found = f"--quantization {options.settings.quantization}"
        raise refuse("quantized twice", found, config.architecture)
    return with_head(without_head(config, options.settings), checkpoint)


def _open(path: str | Path, config: ModelConfig) -> Checkpoint:
    try:
        model = model_class(config.architecture)
        return Checkpoint.open(path).renamed(model.TEXT_PREFIXES).with_prefix(model.EMBEDDING)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{config.architecture}: {error}") from error


def _filled(
    config: ModelConfig,
    options: ModelOptions,
    checkpoint: Checkpoint | None,
    progress: Progress,
    device: Device,
) -> CausalLM:
    """Create the model and load its weights; makes all possible checks before allocating memory."""
    model = _made(config, options, checkpoint)
    if checkpoint is None:
        draw_weights(model, progress)
    else:
        log_dequantized(model, options.dtype, device)
        load_weights(model, checkpoint, progress, device)
        load_vocabulary(model)
    finish_loading(model)
    shorten_lookups(model)
    return model.eval()


def _made(config: ModelConfig, options: ModelOptions, checkpoint: Checkpoint | None) -> CausalLM:
    """Create the model without its weights."""
    with _refusing(config):
        local_experts(config, options.layer_options())
        if checkpoint is not None:
            check_weights(config, options, checkpoint)
        return model_class(config.architecture)(config, options)


@contextmanager
def _refusing(config: ModelConfig) -> Iterator[None]:
    """Context for creating or planning layers; turns their errors into UnsupportedModelError."""
    try:
        yield
    except SharedBlocksError as error:
        raise refuse("FP8 blocks of several parts", str(error), config.architecture) from error
    except FormatError as error:
        name = "stored formats that do not go together"
        raise refuse(name, str(error), config.architecture) from error
    except DivisionError as error:
        raise refuse("tensor parallelism of such sizes", str(error), config.architecture) from error


def explain(
    path: str | Path,
    *,
    device: Device,
    settings: ModelSettings,
    tensor_parallel_size: int = 1,
    mtp: bool = False,
    eagle3: str | Path = "",
    draft_model: str | Path = "",
) -> str:
    """Explain what would run and why: device, model, dtype, attention backend, and rejections.

    Caches, backends and experts are those of one of `tensor_parallel_size` ranks. Reads only
    config.json and the headers of the weights, unless a tied head has to be compared with the
    embedding. Raises the same errors as load_model.
    """
    config = read_model_config(path, mtp=mtp, eagle3=eagle3, draft_model=draft_model)
    ranks = planned_rank(tensor_parallel_size)
    options = replace(_options(settings, config, device), tensor_parallel=ranks)
    draft_lines: list[str] = []
    if config.draft_model is not None:
        check_tokens(path, draft_model)
        own = draft_options(options, config.draft_model)
        draft_lines = _explain_model("draft model", draft_model, config.draft_model, own, device)
    return "\n".join(
        [
            f"device: {device.description()}",
            *_explain_model("model", path, config, options, device),
            *draft_lines,
            "not on this device:",
            *(f"  {feature}: {reason}" for feature, reason in device.refused.items()),
        ]
    )


def plan_stages(
    path: str | Path,
    *,
    device: Device,
    settings: ModelSettings,
    stages: int,
    tensor_parallel_size: int = 1,
) -> list[range]:
    """The layers of each pipeline stage, as load_model divides them.

    Reads the same files as `explain` and raises the same errors as load_model.
    """
    config = read_model_config(path)
    ranks = planned_rank(tensor_parallel_size)
    options = replace(_options(settings, config, device), tensor_parallel=ranks)
    checkpoint = None
    if settings.load_format != "dummy":
        config, checkpoint = _checkpoint(path, config, options)
    options, _ = _with_stored(options, config, checkpoint, device)
    return _divided(config, options, stages)


def _divided(config: ModelConfig, options: ModelOptions, stages: int) -> list[range]:
    with _refusing(config):
        return stage_layers(config, options, stages)


def _explain_model(
    name: str, path: str | Path, config: ModelConfig, options: ModelOptions, device: Device
) -> list[str]:
    """Explain one model: its weights, cache, attention backends and experts."""
    config, checkpoint = _checkpoint(path, config, options)
    formats, checkpoint = stored_formats(config, checkpoint)
    options = replace(options, formats=formats)
    with _refusing(config):
        experts = local_experts(config, options.layer_options())
        targets = check_weights(config, options, checkpoint)
    settings = options.settings
    how = (settings.quantization, options.dtype, device)
    kept = settings.dtype + describe(checkpoint, formats, options.dtype, device)
    if settings.quantization != "none":
        kept += f", linear weights {settings.quantization}"
    return [
        f"{name}: {config.architecture}, {config.num_layers} layers, "
        f"context {config.max_position_embeddings} (at most {config.context_limit})",
        f"weights: {checkpoint.num_bytes / 2**20:.1f} MiB in files, kept as {kept}",
        *explain_layers(checkpoint, formats, targets, *how),
        *_explain_cache(config, options, checkpoint),
        model_class(config.architecture).explain_backends(config, options),
        *([] if experts is None else [explain_experts(experts, settings.moe_strategy)]),
    ]


def _explain_cache(config: ModelConfig, options: ModelOptions, checkpoint: Checkpoint) -> list[str]:
    """Describe the cache contents, by group if there are several."""
    ranks = options.tensor_parallel
    cache = cache_groups_of(config, options.cache_dtypes, ranks)
    own = cache_groups_of(replace(config, draft_model=None), options.cache_dtypes, ranks)
    additional = cache.token_bytes - own.token_bytes
    of_draft = f", {additional} of them for the draft model" if additional else ""
    groups = cache.groups if len(cache.groups) > 1 else ()
    scales = explain_scales(config, checkpoint, _caches_fp8(options))
    where = f" on each of {ranks.size} ranks" if ranks.size > 1 else ""
    return [
        f"KV cache: {cache.token_bytes} bytes per token{where}{of_draft}{scales}",
        *(f"  {group}" for group in groups),
    ]


def _with_stored(
    options: ModelOptions, config: ModelConfig, checkpoint: Checkpoint | None, device: Device
) -> tuple[ModelOptions, Checkpoint | None]:
    """Add the checkpoint's stored formats to `options`; dummy weights follow config.json."""
    if checkpoint is not None:
        formats, checkpoint = stored_formats(config, checkpoint)
        scales = cache_scales(config, checkpoint) if _caches_fp8(options) else {}
        return replace(options, formats=formats, cache_scales=scales), checkpoint
    if config.stored is None or not config.stored.formats:
        return options, None
    if experts := declared_experts(config):
        return replace(options, formats=experts), None
    if why_not_multiplied(options.dtype, device):
        return options, None
    if any(stored.name != "fp8_block" for stored in config.stored.formats):
        titles = " and ".join(stored.title for stored in config.stored.formats)
        raise refuse("dummy weights in this format", titles, config.architecture)
    return replace(options, settings=replace(options.settings, quantization="fp8")), None


def _caches_fp8(options: ModelOptions) -> bool:
    return options.cache_dtypes.keys_and_values is torch.float8_e4m3fn


def _options(settings: ModelSettings, config: ModelConfig, device: Device) -> ModelOptions:
    settings = resolve(settings, config, device)
    _check(settings, config, device)
    return ModelOptions(
        settings,
        device.torch_device,
        device.capabilities(),
        fp8_products=bool(device.supports("fp8_products")),
    )


def _check(settings: ModelSettings, config: ModelConfig, device: Device) -> None:
    """Raise UnsupportedModelError unless device and model support `settings`."""
    features = {"dtype": settings.dtype, "quantization": _CAPABILITIES[settings.quantization]}
    for setting, feature in features.items():
        answer = device.supports(feature) if feature else Support.yes()
        if not answer:
            raise UnsupportedModelError(
                f"{feature} is not supported on {device.name}: {answer.reason}. Change --{setting}."
            )
    if settings.dtype == "float16":
        _check_range(config)
    if settings.quantization == "fp8" and settings.dtype != "bfloat16":
        raise refuse("fp8 with another dtype", f"--dtype {settings.dtype}", config.architecture)
    row = find_refusal("device", "int4_weights in float32", device.name)
    if settings.quantization == "int4" and settings.dtype == "float32" and row:
        raise UnsupportedModelError(row.message_on(device.name))
    is_stored = config.stored is not None and bool(config.stored.formats)
    if settings.quantization in ("int8", "w8a8_int8", "int4") and is_stored:
        found = f"--quantization {settings.quantization}"
        raise refuse("quantized twice", found, config.architecture)
    if settings.max_seq_len is not None and settings.max_seq_len > config.context_limit:
        raise UnsupportedModelError(
            f"max_seq_len {settings.max_seq_len} is longer than the {config.context_limit} "
            "positions of the model. Lower --max-seq-len."
        )


def _check_range(config: ModelConfig) -> None:
    """Raise UnsupportedModelError if the model or its draft model exceeds the range of float16."""
    for each in (config, config.draft_model):
        if each is not None and model_class(each.architecture).OVERFLOWS_FLOAT16:
            raise refuse("float16 of activations beyond its range", architecture=each.architecture)
