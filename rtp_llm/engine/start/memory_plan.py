# SPDX-License-Identifier: Apache-2.0
"""Divides a device's memory among weights, steps and KV cache, or says why it is not enough."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from rtp_llm.layers import torch_dtype
from rtp_llm.loader import resolve
from rtp_llm.worker.cache.budget import (
    MIB,
    CacheBudget,
    CacheSizeError,
    MeasuredMemory,
    free_within,
    measured_budget,
    modest_budget,
    sampler_estimate,
)
from rtp_llm.worker.cache.plan import CachePlan, CacheShape, plan_cache
from rtp_llm.worker.speculative.methods import drafter_bytes
from rtp_llm.worker.warm_up import StepLimits, measure_steps

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.models.config import ModelConfig

_logger = logging.getLogger("rtp_llm.engine")


def weight_bytes(model: CausalLM) -> int:
    """Bytes of parameters and buffers; a tensor that is used twice counts once."""
    tensors = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())


def token_weight_bytes(model: CausalLM) -> int:
    """The part of `weight_bytes` used for one token: all but the experts it is not routed to."""
    named = {t.data_ptr(): t.nbytes for name, t in model.named_parameters() if is_of_experts(name)}
    return weight_bytes(model) - idle_bytes(model.config, sum(named.values()))


def is_of_experts(name: str) -> bool:
    """Whether the weight of this name belongs to routed experts, in a model or a checkpoint."""
    return ".experts." in name


def idle_bytes(config: ModelConfig, expert_bytes: int) -> int:
    """Bytes of the routed experts' weights that a token does not use."""
    if config.moe is None or not expert_bytes:
        return 0
    return expert_bytes - expert_bytes * config.moe.top_k // config.moe.num_experts


@contextmanager
def weights_that_fit(device: Device, model: str) -> Iterator[None]:
    """A context to load weights in; raises CacheSizeError if the device has no room for them."""
    info = device.memory_info()
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CacheSizeError(
            f"the weights of {model} do not fit: {info.free // MIB} of {info.total // MIB} MiB of "
            f"{device.description()} were free: end other programs there, or choose a smaller "
            "dtype, a quantization, another device_type or a larger device"
        ) from error


def plan_memory(
    settings: Settings,
    model: CausalLM,
    device: Device,
    limits: StepLimits,
    graphs: int,
    graph_tokens: int = 0,
    *,
    agree: Callable[[CachePlan, CacheShape], CachePlan] = lambda plan, shape: plan,
) -> CachePlan:
    """Plan the size of the KV cache; on a device with its own memory, steps are tried first.

    ``graphs``: how many graphs will be captured; ``graph_tokens``: the tokens of the largest one.
    ``agree`` agrees with other ranks on a plan for this rank's cache.

    Raises:
        CacheSizeError: steps, or one sequence, do not fit along with the weights.
    """
    config = model.config
    shape = limits.cache_shape(model.cache_groups())
    one_sequence = shape.bytes_for(limits.max_model_len)
    budget = (
        modest_budget(
            settings.kv_cache_mem_mb,
            free=shared_memory(settings, device),
            weights=weight_bytes(model),
            one_sequence=one_sequence,
        )
        if device.shares_memory
        else _measured(settings, model, device, limits, graphs, graph_tokens)
    )
    plan = plan_cache(
        shape,
        budget,
        context=config.max_position_embeddings,
        max_seq_len=settings.max_seq_len,
    )
    return agree(plan, shape)


def shared_memory(settings: Settings, device: Device) -> int:
    """Free bytes for a rank on the host itself: all ranks of this machine share its memory."""
    info = device.memory_info()
    free = free_within(settings.gpu_memory_utilization, info.free, info.total)
    return free // settings.local_ranks


def step_limits(
    settings: Settings, config: ModelConfig, device: Device, max_draft_tokens: int = 0
) -> StepLimits:
    """The largest step and the longest sequence that `settings` allow."""
    budget = max(device.default_batch_tokens(), settings.max_running_requests)
    longest = settings.max_seq_len or config.max_position_embeddings
    if config.encoder is not None:  # whose prompts are not computed in chunks
        budget = max(budget, longest)
    return StepLimits(
        max_batch_tokens=settings.max_batch_tokens_size or budget,
        max_running=settings.max_running_requests,
        max_model_len=longest,
        block_size=settings.seq_size_per_block or device.default_block_size(),
        max_draft_tokens=max_draft_tokens,
    )


def outside_steps(
    settings: Settings, config: ModelConfig, device: Device, limits: StepLimits
) -> int:
    """Bytes taken in addition to weights, cache and steps: what drafts need, and the hidden states
    in transit between stages of a pipeline, for as many steps as there are stages."""
    drafts = drafter_bytes(settings, device, limits, config.draft_vocab_size)
    stages = settings.pipeline_parallel_size
    if stages == 1:
        return drafts
    itemsize = torch_dtype(resolve(settings, config, device)).itemsize
    return drafts + 2 * stages * limits.max_batch_tokens * config.hidden_size * itemsize


def _measured(
    settings: Settings,
    model: CausalLM,
    device: Device,
    limits: StepLimits,
    graphs: int,
    graph_tokens: int,
) -> CacheBudget:
    before = device.memory_info()
    try:
        peaks = measure_steps(model, device, limits)
    except torch.OutOfMemoryError as error:
        raise CacheSizeError(
            f"no room for steps: {before.free // MIB} of {before.total // MIB} MiB are free after "
            f"loading {weight_bytes(model) // MIB} MiB of weights, and a step of "
            f"max_batch_tokens_size={limits.max_batch_tokens} tokens for "
            f"max_running_requests={limits.max_running} sequences takes more: lower these, "
            "end other programs on the device, or choose a larger one"
        ) from error
    device.empty_cache()
    info = device.memory_info()
    sampler = sampler_estimate(limits.max_rows, model.config.vocab_size) if model.has_logits else 0
    memory = MeasuredMemory(
        total=info.total,
        free=info.free - outside_steps(settings, model.config, device, limits),
        prompt_peak=peaks.prompt,
        decode_peak=peaks.decode,
        graphs=graphs,
        graph_share=min(1.0, graph_tokens / limits.max_prompt_tokens),
        sampler=sampler,
    )
    _log(memory, limits)
    return measured_budget(
        settings.kv_cache_mem_mb,
        settings.reserve_runtime_mem_mb,
        memory,
        settings.gpu_memory_utilization,
    )


def _log(memory: MeasuredMemory, limits: StepLimits) -> None:
    _logger.info(
        "%d of %d MiB free after loading the weights; a step of %d tokens took %d MiB, "
        "a step of %d decoding sequences %d MiB",
        memory.free // MIB,
        memory.total // MIB,
        limits.max_batch_tokens,
        memory.prompt_peak // MIB,
        limits.max_decoding,
        memory.decode_peak // MIB,
    )
