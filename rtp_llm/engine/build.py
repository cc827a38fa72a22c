"""Puts an engine together from settings: device, weights, KV cache, scheduler, warm-up."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.engine.engine import Engine, EngineLimits
from rtp_llm.engine.messages import EngineReady, EngineStartError
from rtp_llm.engine.start_checks import check_operators, check_settings, missing_operators
from rtp_llm.executor.cache_plan import CachePlan, CacheShape, plan_cache
from rtp_llm.executor.drawn_tokens import DrawnTokens
from rtp_llm.executor.kv_cache import KVCache
from rtp_llm.executor.model_runner import ModelRunner
from rtp_llm.executor.sampler import Sampler
from rtp_llm.loader import LoadProgress, load_model
from rtp_llm.models.causal_lm import cache_dtype
from rtp_llm.models.config import read_model_config
from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.loader import Progress
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.engine")

# A step's share of a long prompt. Streams that decode wait while it runs, and more gains little: a
# 0.6B model takes 90, 92, 93 and 94 prompt tokens/s a core in chunks of 64, 128, 256 and 512.
_BATCH_TOKENS = 256


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that is ready to step, and the figures of what was built."""

    engine: Engine
    ready: EngineReady


def build_engine(settings: Settings, progress: Progress | None = None) -> BuiltEngine:
    """Load the model of ``settings`` and make an engine for it.

    ``progress`` hears of the bytes as they arrive; None: a bar on a terminal, else the log.

    Raises:
        EngineStartError, DeviceError, UnsupportedModelError, CacheSizeError, ...: with the reason
        and the setting to change.
    """
    began = time.monotonic()
    device = resolve_device(settings.device_type)
    check_settings(settings, device)
    block_size = settings.seq_size_per_block or device.default_block_size()
    device.make_current()
    torch.set_num_threads(settings.num_threads or device.default_threads())
    ops.allow_reference_ops(settings.allow_reference_ops)
    ops.load()
    check_operators(settings, device)
    config = read_model_config(settings.model)
    dtype = config.dtype if settings.dtype == "auto" else _dtype(settings.dtype)
    _check_context(settings, config)
    model = _load(settings, device, dtype, block_size, progress)
    weight_bytes, free_bytes = _weight_bytes(model), device.memory_info().free
    kv_dtype = cache_dtype(settings.kv_cache_dtype, dtype)
    plan = _plan(settings, config, kv_dtype, block_size, weight_bytes, free_bytes)
    cache = KVCache(config, plan, kv_dtype, device.torch_device)
    runner = ModelRunner(model, cache, device, _drawn_tokens(settings, device))
    engine = _assemble(settings, config, plan, runner, device)
    _warm_up(settings, runner, plan)
    seconds = time.monotonic() - began
    ready = _ready(settings, config, plan, dtype, device, weight_bytes, seconds)
    _log(ready, plan, device)
    _warn_of_dynamic_rope(config, plan)
    return BuiltEngine(engine, ready)


def _load(
    settings: Settings,
    device: Device,
    dtype: torch.dtype,
    block_size: int,
    progress: Progress | None,
) -> CausalLM:
    return load_model(
        settings.model,
        device=device,
        dtype=dtype,
        quantization=settings.quantization,
        max_seq_len=settings.max_seq_len,
        block_size=block_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        load_format=settings.load_format,
        progress=progress or LoadProgress(device),
    )


def _warm_up(settings: Settings, runner: ModelRunner, plan: CachePlan) -> None:
    runner.warm_up()
    if not settings.enable_cuda_graph:
        return
    if not (answer := runner.device.supports("graph_capture")):
        if runner.device.name != "cpu":  # which loses nothing by it
            _logger.warning("no graphs are recorded: %s", answer.reason)
        return
    if missing := missing_operators(runner.device):
        # They ask the device for sizes, which a graph cannot record.
        _logger.warning("no graphs are recorded: PyTorch stands in for %s", ", ".join(missing))
        return
    runner.record_graphs(settings.max_running_requests, plan.max_model_len, plan.block_size)


def _ready(
    settings: Settings,
    config: ModelConfig,
    plan: CachePlan,
    dtype: torch.dtype,
    device: Device,
    weight_bytes: int,
    seconds: float,
) -> EngineReady:
    return EngineReady(
        max_model_len=plan.max_model_len,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        max_running=settings.max_running_requests,
        max_queued=settings.max_queued_requests,
        dtype=str(dtype).removeprefix("torch."),
        quantization=settings.quantization,
        device=device.name,
        architecture=config.architecture,
        weight_bytes=weight_bytes,
        kv_cache_bytes=plan.bytes,
        num_threads=torch.get_num_threads(),
        start_seconds=seconds,
    )


def _log(ready: EngineReady, plan: CachePlan, device: Device) -> None:
    _logger.info(
        "%s in %s (%s weights, %.0f MiB) on %s with %d threads; KV cache of %d tokens (%.0f MiB), "
        "longest sequence %d tokens",
        ready.architecture,
        ready.dtype,
        "int8" if ready.quantization == "int8" else ready.dtype,
        ready.weight_bytes / 2**20,
        device.description(),
        ready.num_threads,
        plan.capacity,
        plan.bytes / 2**20,
        plan.max_model_len,
    )


def _warn_of_dynamic_rope(config: ModelConfig, plan: CachePlan) -> None:
    """Longer prompts than the trained length get other angles than transformers gives them."""
    trained = config.rope.max_position
    if config.rope.style == "dynamic" and plan.max_model_len > trained:
        _logger.warning(
            "dynamic rope: prompts of more than %d tokens give other results than transformers, "
            "which takes one base for all tokens of a prompt; here each position has its own, so "
            "that chunks and cached prefixes change nothing (docs/serving.md)",
            trained,
        )


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_context(settings: Settings, config: ModelConfig) -> None:
    if settings.max_seq_len is not None and settings.max_seq_len > config.context_limit:
        raise EngineStartError(
            f"max_seq_len={settings.max_seq_len} is more than the {config.context_limit} tokens "
            f"that {config.architecture} of {settings.model} was made for: lower max_seq_len"
        )


def _weight_bytes(model: CausalLM) -> int:
    """Parameters and buffers, a tensor that is used twice counted once."""
    tensors = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())


def _plan(
    settings: Settings,
    config: ModelConfig,
    dtype: torch.dtype,
    block_size: int,
    weight_bytes: int,
    free_bytes: int,
) -> CachePlan:
    groups = config.layer_groups
    shape = CacheShape(
        group_layers=tuple(groups.count(group) for group in range(len(config.cache_windows))),
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        element_size=dtype.itemsize,
        block_size=block_size,
    )
    return plan_cache(
        shape,
        context=config.max_position_embeddings,
        max_seq_len=settings.max_seq_len,
        kv_cache_mem_mb=settings.kv_cache_mem_mb,
        weight_bytes=weight_bytes,
        free_bytes=free_bytes,
    )


def _drawn_tokens(settings: Settings, device: Device) -> DrawnTokens | None:
    """What lets steps overlap; None where they do not."""
    wanted = settings.enable_overlap
    overlap = device.asynchronous if wanted is None else wanted
    return DrawnTokens(settings.max_running_requests, device) if overlap else None


def _assemble(
    settings: Settings,
    config: ModelConfig,
    plan: CachePlan,
    runner: ModelRunner,
    device: Device,
) -> Engine:
    runtime = load_runtime()
    budget = settings.max_batch_tokens_size or max(_BATCH_TOKENS, settings.max_running_requests)
    groups = [
        runtime.CacheGroup(
            kind="sliding_window" if window else "full",
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            window=window,
        )
        for window in config.cache_windows
    ]
    scheduler = runtime.Scheduler(
        runtime.SchedulerConfig(
            groups=groups,
            max_running=settings.max_running_requests,
            max_queued=settings.max_queued_requests,
            max_batch_tokens=budget,
            max_model_len=plan.max_model_len,
            prefix_cache=settings.reuse_cache,
            overlap=runner.drawn is not None,
        )
    )
    num_slots = settings.max_running_requests + settings.max_queued_requests
    sampler = Sampler(num_slots, device, settings.seed, runner.drawn)
    limits = EngineLimits(
        max_model_len=plan.max_model_len,
        vocab_size=config.vocab_size,
        max_running=settings.max_running_requests,
        max_queued=settings.max_queued_requests,
        eos_token_ids=config.eos_token_ids,
    )
    return Engine(runner, sampler, scheduler, limits)
