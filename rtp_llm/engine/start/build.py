# SPDX-License-Identifier: Apache-2.0
"""Puts an engine together from settings: device, weights, KV cache, scheduler, warm-up."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rtp_llm.config.tasks import served_tasks
from rtp_llm.device import resolve_device
from rtp_llm.distributed.membership import Membership
from rtp_llm.engine.engine import Engine
from rtp_llm.engine.limits import EngineLimits
from rtp_llm.engine.messages import EngineReady
from rtp_llm.engine.profiler import Profiler
from rtp_llm.engine.ranks.engines_of_ranks import EnginesOfRanks
from rtp_llm.engine.ranks.explain_ranks import explain_ranks
from rtp_llm.engine.ranks.lockstep_worker import RankWorker
from rtp_llm.engine.ranks.tensor_ranks import RanksPlace, TensorRanks, start_ranks
from rtp_llm.engine.ranks.topology_checks import check_topology
from rtp_llm.engine.start.build_worker import build_worker, prepare
from rtp_llm.engine.start.encoder_checks import check_encoder
from rtp_llm.engine.start.memory_plan import weight_bytes
from rtp_llm.engine.start.model_pooling import model_pooling
from rtp_llm.engine.start.phases import Phases
from rtp_llm.engine.start.rank_setup import shares_experts
from rtp_llm.loader import resolve
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.native import load_runtime
from rtp_llm.worker.speculative.grammar_proposer import GrammarProposer
from rtp_llm.worker.speculative.methods import make_draft_length, make_proposer

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.engine.ranks.rank_steps import RankSteps
    from rtp_llm.engine.serving import StepGroup
    from rtp_llm.engine.start.build_worker import BuiltWorker
    from rtp_llm.loader import Report
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.text.pooling_config import PoolingConfig
    from rtp_llm.worker.cache.plan import CachePlan
    from rtp_llm.worker.local_worker import LocalWorker
    from rtp_llm.worker.ranks.ranks_worker import RanksWorker
    from rtp_llm.worker.speculative.proposer import Proposer
    from rtp_llm.worker.warm_up import StepLimits
    from rtp_llm.worker.worker import Worker

_logger = logging.getLogger("rtp_llm.engine")


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that is ready to step, and its parts: the ``worker`` of this process, and the
    other tensor-parallel ranks."""

    engine: Engine
    ready: EngineReady
    limits: StepLimits
    worker: LocalWorker
    scheduler: Scheduler
    tensor: TensorRanks
    ranks_worker: RanksWorker | None = None
    step_group: StepGroup | None = None
    profiler: Profiler | None = None


# Weights are written in place, also by threads that are not in the caller's mode.
@torch.inference_mode(False)
def build_engine(
    settings: Settings,
    report: Report | None = None,
    phases: Phases | None = None,
    proposer: Proposer | None = None,
    place: RanksPlace | None = None,
) -> BuiltEngine:
    """Load the model of ``settings`` and make an engine for it.

    ``report`` is called with the loaded bytes and the total bytes of the checkpoint as they arrive.
    ``phases`` were started earlier and are continued. ``proposer`` proposes drafts; None: chosen by
    the settings. ``place`` is where the ranks of a model on several devices meet.

    Raises:
        EngineStartError, DeviceError, CacheSizeError, ...: the reason, and the setting to change.
    """
    phases = phases or Phases()
    device = resolve_device(settings.device_type)
    profiler = Profiler(Path(settings.profiler_dir), device) if settings.profiler_dir else None
    free = prepare(settings, device)
    config = _checked_config(settings, device)
    tensor = start_ranks(settings, device, _among_engines(settings, config, place))
    proposer = proposer or make_proposer(settings, device)
    phases.end("device")
    try:
        built = build_worker(settings, device, tensor, proposer, phases, report)
        scheduler = _scheduler(settings, built, shared=tensor.several)
        ready = _ready(settings, built, device, phases.total, free)
        if settings.num_ranks > 1:
            mixture = built.config.moe is not None
            _logger.info("%s", explain_ranks(settings, device, is_mixture=mixture))
        _log(ready, built.config, built.plan, device, phases)
        ranks_worker = tensor.worker(built.first, scheduler, settings)
        worker = _with_experts(built, ranks_worker)
        engine = _engine(settings, scheduler, worker, built.first, ready, proposer)
    except BaseException:
        tensor.give_up()
        raise
    of = built.limits, built.first, scheduler, tensor, ranks_worker, _group(tensor, built.ranks)
    return BuiltEngine(engine, ready, *of, profiler)


def _checked_config(settings: Settings, device: Device) -> ModelConfig:
    config = read_model_config(settings.model, **settings.draft_head)
    check_encoder(settings, config)
    check_topology(settings, config, device)
    return config


def _among_engines(
    settings: Settings, config: ModelConfig, place: RanksPlace | None
) -> RanksPlace | None:
    """Which one this is of several engines that share experts."""
    if place is None or not shares_experts(settings, config):
        return place
    return replace(place, engine=Membership.read(os.environ))


def _with_experts(built: BuiltWorker, ranks_worker: RanksWorker | None) -> Worker:
    """The worker of all tensor-parallel ranks, joined with the engines that have other experts."""
    own = ranks_worker or built.first
    if built.ranks is None:
        return own
    if ranks_worker is not None:
        built.ranks.notify = ranks_worker.step_with_others
    return RankWorker(own, built.ranks)


def _group(tensor: TensorRanks, engines: RankSteps | None) -> StepGroup | None:
    if tensor.several and engines is not None:
        return EnginesOfRanks(tensor, engines)
    return tensor if tensor.several else engines


def _kept_quantization(settings: Settings, model: CausalLM) -> str:
    """How the model's own linear weights are stored, whatever drafts for it: an FP8 checkpoint
    stays in FP8 if the device supports it."""
    of_drafts = set() if model.drafts is None else set(map(id, model.drafts.parameters()))
    own = (each.dtype for each in model.parameters() if id(each) not in of_drafts)
    return "fp8" if torch.float8_e4m3fn in own else settings.quantization


def _ready(
    settings: Settings, built: BuiltWorker, device: Device, seconds: float, free_bytes: int
) -> EngineReady:
    model, config, plan = built.worker.runner.model, built.config, built.plan
    tasks = served_tasks(settings.task, config.tasks)
    pooling = model_pooling(settings.model, config) if "embed" in tasks else None
    return EngineReady(
        max_model_len=plan.max_model_len,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        num_blocks=plan.full_blocks,
        block_size=plan.block_size,
        max_running=settings.max_running_requests,
        max_queued=settings.max_queued_requests,
        dtype=resolve(settings, config, device).dtype,
        quantization=_kept_quantization(settings, model),
        device=device.name,
        architecture=config.architecture,
        weight_bytes=weight_bytes(model),
        kv_cache_bytes=plan.bytes,
        num_threads=torch.get_num_threads(),
        start_seconds=seconds,
        tasks=tasks,
        pooling=None if pooling is None else pooling.params,
        scored="last" if config.classifier is None else config.classifier.pooling,
        vector_size=_vector_size(config, pooling),
        matryoshka=None if pooling is None else pooling.matryoshka,
        lockstep=shares_experts(settings, config),
        embedding_width=model.inputs.needs.embedding_width,
        mrope=model.inputs.needs.mrope,
        free_bytes=free_bytes,
    )


def _vector_size(config: ModelConfig, pooling: PoolingConfig | None) -> int:
    if pooling is None:
        return 0
    return pooling.dense[-1].outputs if pooling.dense else config.hidden_size


def _log(
    ready: EngineReady, config: ModelConfig, plan: CachePlan, device: Device, phases: Phases
) -> None:
    _logger.info("start: %s", phases)
    _logger.info(
        "%s in %s (%s weights, %.0f MiB) on %s with %d threads; KV cache of %d tokens (%.0f MiB), "
        "longest sequence %d tokens",
        ready.architecture,
        ready.dtype,
        ready.dtype if ready.quantization == "none" else ready.quantization,
        ready.weight_bytes / 2**20,
        device.description(),
        ready.num_threads,
        plan.capacity,
        plan.bytes / 2**20,
        plan.max_model_len,
    )
    _warn_of_dynamic_rope(config, plan)


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


def _scheduler(settings: Settings, built: BuiltWorker, *, shared: bool) -> Scheduler:
    """Make the scheduler; ``shared``: with a batch that other processes can see."""
    runtime, plan, limits, worker = load_runtime(), built.plan, built.limits, built.first
    groups = [
        runtime.CacheGroup(
            kind=group.spec.kind,
            num_blocks=num_blocks,
            block_size=plan.state_interval if group.spec.kind == "recurrent" else plan.block_size,
            window=group.spec.window,
        )
        for group, num_blocks in zip(worker.runner.cache.groups, plan.num_blocks, strict=True)
    ]
    config = runtime.SchedulerConfig(
        groups=groups,
        max_running=settings.max_running_requests,
        max_queued=settings.max_queued_requests,
        max_batch_tokens=limits.max_batch_tokens,
        max_model_len=plan.max_model_len,
        prefix_cache=settings.reuse_cache,
        aging_steps=settings.aging_steps,
        overlap=worker.overlaps,
        max_draft_tokens=limits.max_draft_tokens,
        device_drafts=worker.drafter is not None,
        optimistic_drafts=worker.overlaps and worker.drafter is not None,
        shared_batch=shared,
        **dict.fromkeys(worker.runner.model.inputs.needs.settings, True),
        stages=worker.in_flight,
    )
    # In its batches the names of drafts follow the names of rows; SampledTokens was sized for that.
    assert config.max_rows == limits.max_rows
    scheduler: Scheduler = runtime.Scheduler(config)
    return scheduler


def _engine(
    settings: Settings,
    scheduler: Scheduler,
    worker: Worker,
    local: LocalWorker,
    ready: EngineReady,
    proposer: Proposer,
) -> Engine:
    """Make the engine; ``local`` is the part of ``worker`` in this process."""
    limits = EngineLimits(
        max_model_len=ready.max_model_len,
        vocab_size=ready.vocab_size,
        max_running=ready.max_running,
        max_queued=ready.max_queued,
        eos_token_ids=ready.eos_token_ids,
        embedding_width=ready.embedding_width,
        mrope=ready.mrope,
        token_types=local.runner.model.inputs.needs.token_types,
        tasks=ready.tasks,
        pooling=ready.pooling,
        vector_size=ready.vector_size,
        matryoshka=ready.matryoshka,
        scored=ready.scored,
    )
    length = make_draft_length(settings, proposer)
    if isinstance(proposer, GrammarProposer):
        proposer.constraints = local.constraints
    return Engine(
        scheduler,
        worker,
        limits,
        settings.seed,
        proposer,
        length,
        local.constraints,
        beams=local.sampler.beams,
    )
