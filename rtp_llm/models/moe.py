# SPDX-License-Identifier: Apache-2.0
"""Reads the keys of config.json that mixtures of experts of several architectures share."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.layers import LayerOptions
from rtp_llm.layers.moe import (
    ExpertContext,
    MoeConfig,
    NoChoiceError,
    choose_executor,
)
from rtp_llm.layers.moe.block import dispatcher_without_hooks, expert_context
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import UnsupportedModelError


def num_experts(raw: RawConfig) -> int:
    """Routed experts: `num_experts`, or `num_local_experts` as transformers 5 writes it."""
    key = "num_experts" if raw.values.get("num_experts") is not None else "num_local_experts"
    return raw.integer(key, raw.defaults.get("num_experts"))


def sparse_layers(raw: RawConfig) -> tuple[bool, ...]:
    """Which layers are mixtures: each `decoder_sparse_step`th, without `mlp_only_layers`."""
    dense = raw.get("mlp_only_layers") or []
    step = raw.integer("decoder_sparse_step")
    layers = range(raw.integer("num_hidden_layers"))
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers)


def expert_size(raw: RawConfig) -> int:
    """Intermediate size of one expert."""
    return raw.integer("moe_intermediate_size")


def gated_shared_experts(raw: RawConfig, *, renormalize: bool) -> MoeConfig:
    """Routed experts chosen by softmax, plus a shared expert gated by a sigmoid."""
    return MoeConfig(
        hidden_size=raw.integer("hidden_size"),
        num_experts=num_experts(raw),
        top_k=raw.integer("num_experts_per_tok"),
        intermediate_size=expert_size(raw),
        renormalize=renormalize,
        shared_intermediate_size=raw.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def local_experts(config: ModelConfig, options: LayerOptions) -> ExpertContext | None:
    """The context that an executor for the experts of `config` is chosen for; None: no experts.

    Assumes that no hooks dispatch tokens to other processes. `options` are the model's.
    Raises UnsupportedModelError if no executor supports it, or if a strategy is named for a model
    without experts.
    """
    requested = options.settings.moe_strategy
    if config.moe is None:
        if requested != "auto":
            raise UnsupportedModelError(
                f"--moe-strategy {requested}: this {config.architecture} has no experts"
                " that it could compute. Leave --moe-strategy out."
            )
        return None
    first = config.moe_layers.index(True)
    layer = options.inside("model").inside(f"layers.{first}")
    block = replace(layer, path=config.moe.names.path(layer.path))
    context = expert_context(config.moe, block, dispatcher_without_hooks(config.moe, block))
    try:
        choose_executor(context, requested)
    except NoChoiceError as error:
        raise UnsupportedModelError(str(error)) from error
    return context
