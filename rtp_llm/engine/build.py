"""Puts an engine together from settings: device, weights, KV cache, scheduler, warm-up."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.engine.admission import EngineLimits
from rtp_llm.engine.engine import Engine
from rtp_llm.engine.graph_choice import GraphChoice, choose_graphs, graphs_draft
from rtp_llm.engine.memory_plan import (
    plan_memory,
    step_limits,
    token_weight_bytes,
    weight_bytes,
    weights_that_fit,
)
from rtp_llm.engine.memory_release import await_memory
from rtp_llm.engine.messages import EngineReady, EngineStartError
from rtp_llm.engine.open_constraints import open_constraints
from rtp_llm.engine.phases import Phases
from rtp_llm.engine.replicas.rank_setup import host_threads, share_model, shares_experts
from rtp_llm.engine.replicas.rank_worker import RankWorker
from rtp_llm.engine.start_checks import (
    check_drafts,
    check_model,
    check_operators,
    check_settings,
    missing_operators,
)
from rtp_llm.layers import torch_dtype
from rtp_llm.loader import LoadProgress, load_model, resolve
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.native import load_runtime
from rtp_llm.ops.fp8 import fp8_gemm_choice
from rtp_llm.ops.fp8.fp8_gemm_choice import Fp8GemmChoice
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.graphs.capture_sizes import GraphSize, count_graphs
from rtp_llm.worker.graphs.shared_graphs import SharedGraphs
from rtp_llm.worker.heads.sampler import Sampler
from rtp_llm.worker.local_worker import LocalWorker
from rtp_llm.worker.model_runner import ModelRunner
from rtp_llm.worker.sampled_tokens import SampledTokens
from rtp_llm.worker.speculative.grammar_proposer import GrammarProposer
from rtp_llm.worker.speculative.methods import (
    drafts_on_device,
    make_draft_length,
    make_drafter,
    make_proposer,
)
from rtp_llm.worker.speculative.proposer import Proposer
from rtp_llm.worker.warm_up import StepLimits

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.engine.replicas.rank_setup import Shared
    from rtp_llm.engine.replicas.rank_steps import RankSteps
    from rtp_llm.loader import Progress
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.cache.plan import CachePlan

_logger = logging.getLogger("rtp_llm.engine")


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that is ready to step, and what it is made of."""

    engine: Engine
    ready: EngineReady
    limits: StepLimits
    worker: LocalWorker
    scheduler: Scheduler
    step_group: RankSteps | None = None


def build_engine(
    settings: Settings,
    progress: Progress | None = None,
    phases: Phases | None = None,
    proposer: Proposer | None = None,
) -> BuiltEngine:
    """Load the model of ``settings`` and make an engine for it.

    ``progress`` hears of the bytes as they arrive; None: a bar on a terminal, else the log.
    ``phases`` began earlier and are gone on with. ``proposer`` of drafts; None: as settings say.

    Raises:
        EngineStartError, DeviceError, CacheSizeError, ...: the reason, and the setting to change.
    """
    phases = phases or Phases()
    device = resolve_device(settings.device_type)
    free = _prepare(settings, device)
    proposer = proposer or make_proposer(settings, device)
    phases.end("device")
    config = _config(settings)
    shared = share_model(settings, config, device)
    model = _load(settings, device, shared, progress)
    phases.end("weights")
    limits = _limits(settings, model, device, proposer)
    sizes = _sizes_to_capture(settings, model, device, limits)
    plan = plan_memory(settings, model, device, limits, *_counted(settings, sizes, model, limits))
    phases.end("trial steps")
    cache = KVCache(model.cache_groups(), plan.num_blocks, plan.block_size, device.torch_device)
    worker = _worker(settings, limits, model, cache, device, plan.max_model_len)
    scheduler = _scheduler(settings, plan, limits, worker)
    ranks = shared.steps(model, device, settings)
    phases.end("cache")
    worker.runner.warm_up()
    phases.end("warm-up")
    _capture_graphs(worker.runner, sizes, plan, ranks)
    phases.end("graphs")
    ready = _ready(settings, model, plan, device, phases.total, free)
    _log(ready, config, plan, device, phases)
    engine = _engine(settings, scheduler, worker, ranks, ready, proposer)
    return BuiltEngine(engine, ready, limits, worker, scheduler, ranks)


def _prepare(settings: Settings, device: Device) -> int:
    """Threads and kernels are ready, or missing and named. Returns the device's free bytes."""
    check_settings(settings, device)
    device.make_current()
    free = await_memory(device)
    torch.set_num_threads(host_threads(settings, device))
    ops.allow_reference_ops(settings.allow_reference_ops)
    ops.load()
    fp8_gemm_choice.configure(
        Fp8GemmChoice.of(
            settings.deep_gemm_use_swap_ab,
            settings.deep_gemm_swap_ab_rows,
            settings.deep_gemm_num_sm,
        )
    )
    check_operators(settings, device)
    return free


def _load(
    settings: Settings, device: Device, shared: Shared, progress: Progress | None
) -> CausalLM:
    with weights_that_fit(device, settings.model):
        model = load_model(
            settings.model,
            device=device,
            settings=settings,
            experts=shared.experts,
            progress=progress or LoadProgress(device),
            **settings.draft_head,
        )
    shared.loaded(settings)
    return model


def _limits(settings: Settings, model: CausalLM, device: Device, proposer: Proposer) -> StepLimits:
    rollback = model.cache_groups().rollback
    check_drafts(settings, proposer, rollback)
    return step_limits(settings, model.config, device, proposer.max_draft_tokens)


def _sizes_to_capture(
    settings: Settings, model: CausalLM, device: Device, limits: StepLimits
) -> list[GraphSize]:
    """The steps that will be captured as graphs; none where they cannot be, which the log tells."""
    of_weights = weight_bytes(model), token_weight_bytes(model)
    choice = choose_graphs(settings, model.config, device, limits, *of_weights)
    if choice.sizes and (missing := missing_operators(device)):
        # They ask the device for sizes, which a graph cannot capture.
        choice = GraphChoice([], f"PyTorch stands in for {', '.join(missing)}")
    if choice.reason and device.name != "cpu" and settings.enable_cuda_graph is not False:
        _logger.warning("no graphs are captured: %s", choice.reason)
    return choice.sizes


def _counted(
    settings: Settings, sizes: list[GraphSize], model: CausalLM, limits: StepLimits
) -> tuple[int, int]:
    """How many graphs there will be, and the tokens of the largest."""
    drafts = limits.max_draft_tokens if graphs_draft(settings, model.config) else None
    graphs = count_graphs(sizes, drafts)
    return graphs, max((size.tokens for size in sizes), default=0)


def _capture_graphs(
    runner: ModelRunner, sizes: list[GraphSize], plan: CachePlan, ranks: RankSteps | None = None
) -> None:
    if sizes:
        graphs = runner.capture_graphs(sizes, plan.max_model_len, plan.block_size, ranks)
        if ranks is not None and isinstance(graphs, SharedGraphs):
            ranks.graphs = graphs


def _kept_quantization(settings: Settings, model: CausalLM) -> str:
    """How the model's own linear weights are kept, whatever its drafts come from: a checkpoint in
    FP8 stays so where the device can."""
    of_drafts = set() if model.drafts is None else set(map(id, model.drafts.parameters()))
    own = (each.dtype for each in model.parameters() if id(each) not in of_drafts)
    return "fp8" if torch.float8_e4m3fn in own else settings.quantization


def _ready(
    settings: Settings,
    model: CausalLM,
    plan: CachePlan,
    device: Device,
    seconds: float,
    free_bytes: int,
) -> EngineReady:
    config = model.config
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
        lockstep=shares_experts(settings, config),
        free_bytes=free_bytes,
    )


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


def _config(settings: Settings) -> ModelConfig:
    """The model's, once it is clear that it was made for sequences as long as those asked for."""
    config = read_model_config(settings.model, **settings.draft_head)
    if settings.max_seq_len is not None and settings.max_seq_len > config.context_limit:
        raise EngineStartError(
            f"max_seq_len={settings.max_seq_len} is more than the {config.context_limit} tokens "
            f"that {config.architecture} of {settings.model} was made for: lower max_seq_len"
        )
    check_model(settings, config)
    return config


def _overlaps(settings: Settings, device: Device) -> bool:
    """A step is submitted before the tokens of the one before are read."""
    wanted = settings.enable_overlap
    return device.asynchronous if wanted is None else wanted


def _worker(
    settings: Settings,
    limits: StepLimits,
    model: CausalLM,
    cache: KVCache,
    device: Device,
    max_model_len: int,
) -> LocalWorker:
    overlaps, drafts = _overlaps(settings, device), drafts_on_device(settings, device)
    sampled = None
    if overlaps or drafts:
        sampled = SampledTokens(limits.max_rows, device, optimistic=overlaps and drafts)
    runner = ModelRunner(model, cache, device, sampled)
    num_slots = settings.max_running_requests + settings.max_queued_requests
    drafter = None
    if sampled is not None and drafts:
        dtype = torch_dtype(resolve(settings, model.config, device))
        drafter = make_drafter(settings, runner, sampled, num_slots, max_model_len, dtype)
    sampler = Sampler(num_slots, device, sampled)
    constraints = open_constraints(settings.model, model.config, num_slots)
    return LocalWorker(runner, sampler, overlaps=overlaps, drafter=drafter, constraints=constraints)


def _scheduler(
    settings: Settings, plan: CachePlan, limits: StepLimits, worker: LocalWorker
) -> Scheduler:
    runtime = load_runtime()
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
    )
    # Names of drafts in its batches begin behind those of rows, which SampledTokens were made for.
    assert config.max_rows == limits.max_rows
    scheduler: Scheduler = runtime.Scheduler(config)
    return scheduler


def _engine(
    settings: Settings,
    scheduler: Scheduler,
    worker: LocalWorker,
    ranks: RankSteps | None,
    ready: EngineReady,
    proposer: Proposer,
) -> Engine:
    limits = EngineLimits(
        max_model_len=ready.max_model_len,
        vocab_size=ready.vocab_size,
        max_running=ready.max_running,
        max_queued=ready.max_queued,
        eos_token_ids=ready.eos_token_ids,
    )
    together = worker if ranks is None else RankWorker(worker, ranks)
    length = make_draft_length(settings, proposer)
    if isinstance(proposer, GrammarProposer):
        proposer.constraints = worker.constraints
    return Engine(scheduler, together, limits, settings.seed, proposer, length, worker.constraints)
