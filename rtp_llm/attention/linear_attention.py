# SPDX-License-Identifier: Apache-2.0
"""Linear attention with the gated delta rule: a state of fixed size instead of keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import Backend
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Capabilities, Support
from rtp_llm.device.choice import AUTO

_OPERATORS = ("causal_conv1d", "gated_delta_rule")


@dataclass(frozen=True)
class LinearAttentionConfig:
    """The config of layers with gated delta nets.

    `num_heads` value heads of `value_size` elements share `num_key_heads` heads of queries and keys
    of `key_size`. See BackendOptions for the other fields.
    """

    capabilities: Capabilities
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_heads: int
    num_key_heads: int
    key_size: int
    value_size: int
    block_size: int
    settings: ModelSettings = field(default_factory=ModelSettings)

    def __post_init__(self) -> None:
        # The setting names backends of attention over keys and values.
        plain = replace(self.settings, attention_backend=AUTO)
        object.__setattr__(self, "settings", plain)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.capabilities}, {dtype}, gated delta rule, {self.num_heads} value heads of "
            f"{self.value_size} over {self.num_key_heads} key heads of {self.key_size}, states in "
            f"{self.settings.mamba_ssm_cache_dtype}"
        )


class DeltaRuleWeights(NamedTuple):
    """A layer's weights for the operators: convolution [C, K], a_log and dt_bias [Hv]."""

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor


class GatedDeltaRuleBackend(Backend[LinearAttentionConfig]):
    """The convolution and the rule, one operator each."""

    name: ClassVar[str] = "gated_delta_rule"
    priority: ClassVar[int] = 0
    config_class: ClassVar[type] = LinearAttentionConfig

    @classmethod
    def supports(cls, config: LinearAttentionConfig) -> Support:
        if ops.references_allowed():
            return Support.yes()
        torch_type = config.capabilities.torch_type
        missing = [name for name in _OPERATORS if not ops.has_kernel(name, torch_type)]
        if missing:
            return Support.no(
                f"the operator library has no {', '.join(missing)} for it, and their PyTorch "
                "references are slow: allow them with --allow-reference-ops"
            )
        return Support.yes()

    def attend(
        self, qkv: Tensor, ba: Tensor, layer: int, weights: DeltaRuleWeights, batch: ForwardBatch
    ) -> Tensor:
        """Compute [T, Hv, Dv] from the projections qkv [T, C] and ba [T, 2 Hv]; see the operators.

        The states after the step's tokens are written to the layer's cache.
        """
        batch.wait_for_layer(layer)
        group = batch.layer_group[layer]
        inputs, *states = batch.states[layer]
        step = (
            batch.cu_seqlens_q,
            batch.seq_lens,
            batch.state_read[group],
            batch.state_write[group],
            batch.max_seqlen_q,
        )
        # Between the projections and here nothing writes states or where they lie: only the kernels
        # that give one another their results may still run.
        mixed = ops.causal_conv1d(qkv, weights.conv, inputs, *step, early=True)
        state, ring_k, ring_u, ring_g, folded = states
        out = ops.gated_delta_rule(
            mixed,
            ba,
            weights.a_log,
            weights.dt_bias,
            state,
            ring_k,
            ring_u,
            ring_g,
            folded,
            *step,
            early=True,
        )
        batch.layer_written(layer)
        return out
