# SPDX-License-Identifier: Apache-2.0
"""Puts together what executes steps on one device: weights, KV cache, heads, graphs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from rtp_llm import ops
from rtp_llm.config.tasks import served_tasks
from rtp_llm.engine.memory_release import await_memory
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.start.encoder_checks import check_whole_prompts
from rtp_llm.engine.start.graph_choice import GraphChoice, choose_graphs, graphs_draft
from rtp_llm.engine.start.memory_plan import (
    plan_memory,
    step_limits,
    token_weight_bytes,
    weight_bytes,
    weights_that_fit,
)
from rtp_llm.engine.start.open_constraints import open_constraints
from rtp_llm.engine.start.rank_setup import host_threads, share_model
from rtp_llm.engine.start.start_checks import (
    check_drafts,
    check_model,
    check_operators,
    check_settings,
    check_step_size,
    missing_operators,
)
from rtp_llm.layers import torch_dtype
from rtp_llm.loader import LoadProgress, load_model, resolve
from rtp_llm.loader.dense_layers import DenseLayer, load_dense_layers
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.ops.fp8 import fp8_gemm_choice
from rtp_llm.ops.fp8.fp8_gemm_choice import Fp8GemmChoice
from rtp_llm.text.pooling_config import read_pooling
from rtp_llm.text.score_tokens import read_score_tokens
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.graphs.shared_graphs import SharedGraphs
from rtp_llm.worker.heads.sampler import Sampler
from rtp_llm.worker.inputs.graph_sizes import GraphSize, count_graphs
from rtp_llm.worker.local_worker import LocalWorker
from rtp_llm.worker.model_runner import ModelRunner
from rtp_llm.worker.ranks.first_stage import FirstStageWorker
from rtp_llm.worker.ranks.later_stage import LaterStageWorker
from rtp_llm.worker.sampled_tokens import SampledTokens
from rtp_llm.worker.speculative.methods import drafts_on_device, make_drafter
from rtp_llm.worker.warm_up import StepLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.engine.ranks.rank_steps import RankSteps
    from rtp_llm.engine.ranks.tensor_ranks import TensorRanks
    from rtp_llm.engine.start.phases import Phases
    from rtp_llm.engine.start.rank_setup import Shared
    from rtp_llm.loader import Report
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.cache.plan import CachePlan
    from rtp_llm.worker.speculative.proposer import Proposer

_logger = logging.getLogger("rtp_llm.engine")


@dataclass(frozen=True)
class BuiltWorker:
    """A worker that is ready for its first step; ``ranks``: the engines that share its experts."""

    worker: LocalWorker | LaterStageWorker
    config: ModelConfig
    plan: CachePlan
    limits: StepLimits
    ranks: RankSteps | None

    @property
    def first(self) -> LocalWorker:
        """The worker, of an engine's first rank."""
        assert isinstance(self.worker, LocalWorker)
        return self.worker


def build_worker(
    settings: Settings,
    device: Device,
    tensor: TensorRanks,
    proposer: Proposer,
    phases: Phases,
    report: Report | None = None,
) -> BuiltWorker:
    """Load this rank's part of the model (see ``tensor``), and make a worker for it.

    All ranks call this with the same settings: some of the work needs all of them.
    See build_engine.
    """
    config = _config(settings)
    shared = share_model(settings, config, device, tensor)
    model = _load(settings, device, shared, tensor, report)
    phases.end("weights")
    limits = _limits(settings, model, device, proposer)
    wanted = _sizes_to_capture(settings, model, device, limits)
    sizes = tensor.agree_on(wanted, list[GraphSize])
    counted = _counted(settings, sizes, model, limits)
    agree = tensor.agree_on_plan
    plan = plan_memory(settings, model, device, limits, *counted, agree=agree)
    phases.end("trial steps")
    cache = KVCache(model.cache_groups(), plan.num_blocks, plan.block_size, device.torch_device)
    runner = _runner(settings, limits, model, cache, device)
    runner.dense = _dense_layers(settings, config, device)
    runner.score_tokens = _score_tokens(settings, config)
    worker = _worker(settings, runner, tensor, plan.max_model_len)
    ranks = shared.steps(model, device, settings)
    phases.end("cache")
    worker.runner.warm_up()
    phases.end("warm-up")
    _capture_graphs(worker.runner, sizes, plan, tensor, ranks)
    phases.end("graphs")
    return BuiltWorker(worker, config, plan, limits, ranks)


def prepare(settings: Settings, device: Device) -> int:
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


def _config(settings: Settings) -> ModelConfig:
    """The model's config, after checking that it supports sequences of the requested length."""
    config = read_model_config(settings.model, **settings.draft_head)
    if settings.max_seq_len is not None and settings.max_seq_len > config.context_limit:
        raise EngineStartError(
            f"max_seq_len={settings.max_seq_len} is more than the {config.context_limit} tokens "
            f"that {config.architecture} of {settings.model} was made for: lower max_seq_len"
        )
    check_model(settings, config)
    return config


def _load(
    settings: Settings,
    device: Device,
    shared: Shared,
    tensor: TensorRanks,
    report: Report | None,
) -> CausalLM:
    with weights_that_fit(device, settings.model):
        model = load_model(
            settings.model,
            device=device,
            settings=settings,
            experts=shared.experts,
            tensor_parallel=tensor.parallel,
            stage=(tensor.pipeline.stage, tensor.pipeline.stages),
            progress=LoadProgress(device, report=report),
            **settings.draft_head,
        )
    shared.loaded(settings)
    tensor.loaded(settings)
    return model


def _limits(settings: Settings, model: CausalLM, device: Device, proposer: Proposer) -> StepLimits:
    groups = model.cache_groups()
    check_drafts(settings, proposer, groups.rollback)
    limits = step_limits(settings, model.config, device, proposer.max_draft_tokens)
    check_whole_prompts(limits, model.config)
    recurrent = any(group.spec.kind == "recurrent" for group in groups.groups)
    check_step_size(limits, recurrent=recurrent)
    return limits


def _sizes_to_capture(
    settings: Settings, model: CausalLM, device: Device, limits: StepLimits
) -> list[GraphSize]:
    """The steps to capture as graphs; none, with a line in the log, if that is not possible."""
    of_weights = weight_bytes(model), token_weight_bytes(model)
    choice = choose_graphs(settings, model.config, device, limits, *of_weights)
    if choice.sizes and (missing := missing_operators(device)):
        # They read sizes from the device, which a graph cannot capture.
        choice = GraphChoice([], f"PyTorch stands in for {', '.join(missing)}")
    if choice.reason and device.name != "cpu" and settings.enable_graphs is not False:
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
    runner: ModelRunner,
    sizes: list[GraphSize],
    plan: CachePlan,
    tensor: TensorRanks,
    ranks: RankSteps | None,
) -> None:
    if sizes:
        where = plan.max_model_len, plan.block_size
        graphs = runner.capture_graphs(sizes, *where, ranks, tensor.captures)
        if ranks is not None and isinstance(graphs, SharedGraphs):
            ranks.graphs = graphs


def _overlaps(settings: Settings, device: Device) -> bool:
    """Whether a step is submitted before the tokens of the previous one are read."""
    if settings.pipeline_parallel_size > 1:  # it overlaps with those of other sequences
        return False
    wanted = settings.enable_overlap
    return device.asynchronous if wanted is None else wanted


def _runner(
    settings: Settings,
    limits: StepLimits,
    model: CausalLM,
    cache: KVCache,
    device: Device,
) -> ModelRunner:
    overlaps, drafts = _overlaps(settings, device), drafts_on_device(settings, device)
    sampled = None
    if overlaps or drafts:
        sampled = SampledTokens(limits.max_rows, device, optimistic=overlaps and drafts)
    return ModelRunner(model, cache, device, sampled)


def _score_tokens(settings: Settings, config: ModelConfig) -> tuple[int, int] | None:
    """The answers whose logits are a score, of a model that has no other head for it."""
    scores = "score" in served_tasks(settings.task, config.tasks)
    if not scores or config.classifier is not None:
        return None
    return read_score_tokens(settings.model)


def _dense_layers(settings: Settings, config: ModelConfig, device: Device) -> list[DenseLayer]:
    """The layers that follow pooling."""
    if "embed" not in served_tasks(settings.task, config.tasks):
        return []
    with torch.inference_mode(False):
        return load_dense_layers(read_pooling(settings.model).dense, config.hidden_size, device)


def _worker(
    settings: Settings, runner: ModelRunner, tensor: TensorRanks, max_model_len: int
) -> LocalWorker | LaterStageWorker:
    pipeline = tensor.pipeline
    if not pipeline.is_first:
        return LaterStageWorker(runner, pipeline)
    config, device, sampled = runner.model.config, runner.device, runner.sampled
    num_slots = settings.max_running_requests + settings.max_queued_requests
    drafter = None
    if sampled is not None and drafts_on_device(settings, device):
        dtype = torch_dtype(resolve(settings, config, device))
        drafter = make_drafter(settings, runner, sampled, num_slots, max_model_len, dtype)
    make: Callable[..., LocalWorker] = LocalWorker
    if pipeline.stages > 1:
        make = partial(FirstStageWorker, pipeline=pipeline)
    return make(
        runner,
        Sampler(num_slots, device, sampled, tensor.logit_shards(runner.model, device)),
        overlaps=_overlaps(settings, device),
        drafter=drafter,
        constraints=open_constraints(settings.model, config, num_slots),
    )
