# SPDX-License-Identifier: Apache-2.0
"""How large the KV cache would be, without loading anything, for `rtp-llm explain`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rtp_llm.distributed.tensor_parallel import planned_rank
from rtp_llm.engine.ranks.explain_ranks import stage_layers_of
from rtp_llm.engine.start.graph_choice import choose_graphs
from rtp_llm.engine.start.memory_plan import (
    idle_bytes,
    is_of_experts,
    outside_steps,
    shared_memory,
    step_limits,
)
from rtp_llm.layers import torch_dtype
from rtp_llm.loader import resolve
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.stored_formats import kept_bytes, stored_formats
from rtp_llm.models.causal_lm import model_cache_dtypes
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.drafts.draft_model import cache_groups_of
from rtp_llm.worker.cache.budget import (
    MIB,
    CacheBudget,
    CacheSizeError,
    MeasuredMemory,
    measured_budget,
    modest_budget,
    sampler_estimate,
)
from rtp_llm.worker.cache.plan import CachePlan, CacheShape, plan_cache
from rtp_llm.worker.speculative.methods import drafter_bytes, make_proposer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.warm_up import StepLimits


def explain_cache(settings: Settings, device: Device) -> str:
    """One line, one more for each of several cache groups, and one for the memory of drafts.

    Raises CacheSizeError when model and cache would not fit.
    """
    shape, plan = estimate_plan(settings, device)
    if not shape.groups:
        return f"KV cache: none; longest prompt {plan.max_model_len} tokens"
    stages = settings.pipeline_parallel_size
    where = f" on {stages} stages" if stages > 1 else ""
    lines = [
        f"KV cache: about {plan.bytes / MIB:.0f} MiB{where}: {plan.full_blocks} blocks of "
        f"{plan.block_size} tokens, {plan.capacity} tokens fit; longest sequence "
        f"{plan.max_model_len} tokens"
    ]
    if len(shape.groups) > 1:
        for group, blocks in zip(shape.groups, plan.num_blocks, strict=True):
            size = blocks * group.block_bytes(plan.block_size) / MIB
            lines.append(f"  {group}: {blocks} blocks, {size:.0f} MiB")
    config = read_model_config(settings.model, **settings.draft_head)
    limits = step_limits(settings, config, device)
    if size := drafter_bytes(settings, device, limits, config.draft_vocab_size):
        sizes = f"{limits.max_running} sequences of {limits.max_model_len} tokens"
        what = "token histories to draft from"
        if settings.samples_drafts:
            sizes = f"{limits.max_running} sequences, {config.draft_vocab_size} logits a token"
            what = "logits that drafts are sampled from"
        lines.append(f"{what}: {size / MIB:.0f} MiB, for {sizes}")
    return "\n".join(lines)


def explain_graphs(settings: Settings, device: Device) -> str:
    """One line: which graphs a start would capture and their memory, or why there are none."""
    config = read_model_config(settings.model, **settings.draft_head)
    dtype = torch_dtype(resolve(settings, config, device))
    weights, experts = _weight_bytes(settings, dtype, device), 0
    if settings.load_format != "dummy":
        quantized = settings.quantization != "none"
        experts = _kept_bytes(
            settings.model, dtype, device, quantized=quantized, counts=is_of_experts
        )
        experts //= settings.ranks_per_engine
    drafts = make_proposer(settings, device).max_draft_tokens
    limits = step_limits(settings, config, device, drafts)
    of_token = weights - idle_bytes(config, experts)
    return str(choose_graphs(settings, config, device, limits, weights, of_token))


def estimate_plan(settings: Settings, device: Device) -> tuple[CacheShape, CachePlan]:
    """The plan that a start would make with the memory that is free now. On a GPU a start also
    tries steps, which may take more than the reserve assumed here. The stages of a pipeline count
    together."""
    config = read_model_config(settings.model, **settings.draft_head)
    resolved = resolve(settings, config, device)
    ranks = planned_rank(settings.tensor_parallel_size)
    groups = cache_groups_of(config, model_cache_dtypes(resolved), ranks)
    limits = step_limits(settings, config, device)
    whole = limits.cache_shape(groups)
    weights = _weight_bytes(settings, torch_dtype(resolved), device)
    shapes = [whole]
    if settings.pipeline_parallel_size > 1:
        layers = stage_layers_of(settings, device)
        shapes = [limits.cache_shape(replace(groups, here=here)) for here in layers]
    plans = []
    for shape in shapes:
        one_sequence = shape.bytes_for(limits.max_model_len)
        plans.append(
            plan_cache(
                shape,
                _budget(settings, config, device, limits, one_sequence, weights),
                context=config.max_position_embeddings,
                max_seq_len=settings.max_seq_len,
            )
        )
    return whole, plans[0].within(plans[1:], whole)


def _budget(
    settings: Settings,
    config: ModelConfig,
    device: Device,
    limits: StepLimits,
    one_sequence: int,
    weights: int,
) -> CacheBudget:
    info = device.memory_info()
    shared_by = settings.local_ranks if device.shares_memory else 1
    free = info.free // shared_by - weights
    if free < 0:
        raise CacheSizeError(
            f"the weights do not fit: they take about {weights * shared_by // MIB} MiB, and "
            f"{info.free // MIB} of {info.total // MIB} MiB of {device.description()} are free"
        )
    if device.shares_memory:
        return modest_budget(
            settings.kv_cache_mem_mb,
            free=max(0, shared_memory(settings, device) - weights),
            weights=weights,
            one_sequence=one_sequence,
        )
    memory = MeasuredMemory(
        total=info.total,
        free=free - outside_steps(settings, config, device, limits),
        sampler=sampler_estimate(settings.max_running_requests, config.vocab_size),
    )
    return measured_budget(
        settings.kv_cache_mem_mb,
        settings.reserve_runtime_mem_mb,
        memory,
        settings.gpu_memory_utilization,
    )


def _weight_bytes(settings: Settings, dtype: torch.dtype, device: Device) -> int:
    """Bytes of weights as a rank would store them. With quantisation all matrices count as
    quantised, and all weights as divided among the ranks of an engine."""
    if settings.load_format == "dummy":
        return 0
    own = _kept_bytes(settings.model, dtype, device, quantized=settings.quantization != "none")
    own //= settings.ranks_per_engine
    drafts = settings.draft_head["draft_model"]
    return own + _kept_bytes(drafts, dtype, device, quantized=False) if drafts else own


def _kept_bytes(
    folder: str,
    dtype: torch.dtype,
    device: Device,
    *,
    quantized: bool,
    counts: Callable[[str], bool] = lambda name: True,
) -> int:
    """Bytes of the tensors whose names ``counts`` accepts, as `device` keeps them."""
    checkpoint = Checkpoint.open(folder)
    formats, _ = stored_formats(read_model_config(folder), checkpoint)
    kept = kept_bytes(checkpoint, formats, dtype, device)
    if quantized:
        matrices = (entry for entry in checkpoint.tensors.values() if len(entry.shape) > 1)
        kept |= {entry.name: math.prod(entry.shape) for entry in matrices}
    return sum(size for name, size in kept.items() if counts(name))
