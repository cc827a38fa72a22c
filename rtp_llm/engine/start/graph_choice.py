# SPDX-License-Identifier: Apache-2.0
"""Which steps an engine captures as graphs, or why it captures none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtp_llm.engine.start.rank_setup import padded_tokens, shares_experts
from rtp_llm.worker.cache.budget import GRAPH_BYTES, MIB
from rtp_llm.worker.inputs.graph_sizes import (
    GraphSize,
    count_graphs,
    encoder_sizes,
    graph_sizes,
    launch_work,
)

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.warm_up import StepLimits


@dataclass(frozen=True)
class GraphChoice:
    """`sizes` in the order of capture, for `count` graphs in all; `reason`: why there are none."""

    sizes: list[GraphSize]
    reason: str = ""
    count: int = 0

    def __str__(self) -> str:
        if not self.sizes:
            return f"graphs: none: {self.reason}"
        decoding = max((size.sequences for size in self.sizes if size.longest == 1), default=0)
        others = max((size.tokens for size in self.sizes if size.longest > 1), default=0)
        what = (
            f"decode steps of up to {decoding} sequences, and of prompts and drafts"
            if decoding
            else "whole prompts"
        )
        return (
            f"graphs: {self.count}, of {what} of up to {others} tokens; about "
            f"{self.count * GRAPH_BYTES // MIB} MiB on top of the results of a step"
        )


def choose_graphs(
    settings: Settings,
    config: ModelConfig,
    device: Device,
    limits: StepLimits,
    weight_bytes: int,
    token_bytes: int,
) -> GraphChoice:
    """Choose the graphs that settings and device allow; does not look for missing operators.

    ``token_bytes`` of the weights are for one token: see `graph_sizes`.
    """
    if settings.enable_graphs is False:
        return GraphChoice([], "enable_graphs is off")
    if not (answer := device.supports("graph_capture")):
        return GraphChoice([], answer.reason)
    if settings.enable_graphs is None and not device.graphs_by_default:
        untried = f"no graph has run on {device.name} yet; enable_graphs on captures them"
        return GraphChoice([], untried)
    if shares_experts(settings, config) and settings.tensor_parallel_size > 1:
        return GraphChoice([], "experts of several engines of several ranks are not captured")
    most = limits.max_batch_tokens
    if shares_experts(settings, config):
        most = min(most, padded_tokens(settings, device))
    if not most:
        return GraphChoice([], "expert_capacity=0 has messages of any size")
    drafts = limits.max_draft_tokens
    layers = -(-config.num_layers // settings.pipeline_parallel_size)
    work = launch_work(layers, settings.ranks_per_engine > 1)
    if config.encoder is not None:
        lengths = limits.max_running, weight_bytes, limits.max_model_len
        sizes = encoder_sizes(most, *lengths, work)
        return GraphChoice(sizes, count=len(sizes))
    sizes = graph_sizes(most, limits.max_running, weight_bytes, drafts, token_bytes, work)
    count = count_graphs(sizes, drafts if graphs_draft(settings, config) else None)
    return GraphChoice(sizes, count=count)


def graphs_draft(settings: Settings, config: ModelConfig) -> bool:
    """Whether graphs find drafts; if ranks share experts, each rank does it outside of graphs."""
    return config.has_drafts and not shares_experts(settings, config)
