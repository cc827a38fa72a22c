# SPDX-License-Identifier: Apache-2.0
"""Linear attention: a state of fixed size instead of keys and values."""

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


@dataclass(frozen=True)
class LinearAttentionConfig:
    """The config of layers whose states follow `rule`, the name of a backend.

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
    rule: str = "gated_delta_rule"

    def __post_init__(self) -> None:
        # The setting names backends of attention over keys and values.
        plain = replace(self.settings, attention_backend=AUTO)
        object.__setattr__(self, "settings", plain)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.capabilities}, {dtype}, {self.rule.replace('_', ' ')}, {self.num_heads} value "
            f"heads of {self.value_size} over {self.num_key_heads} key heads of {self.key_size}, "
            f"states in {self.settings.mamba_ssm_cache_dtype}"
        )


class DeltaRuleWeights(NamedTuple):
    """A layer's weights for the operators: convolution [C, K], a_log and dt_bias [Hv]."""

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor


class Mamba2Weights(NamedTuple):
    """A layer's weights for the operators: convolution [C, K] and its bias [C] or None; a_log,
    dt_bias and d [H]; the bounds of a token's step."""

    conv: Tensor
    conv_bias: Tensor | None
    a_log: Tensor
    dt_bias: Tensor
    d: Tensor
    dt_limits: tuple[float, float]


class LinearAttentionBackend(Backend[LinearAttentionConfig]):
    """The convolution and the rule `name`, one operator each."""

    priority: ClassVar[int] = 0
    config_class: ClassVar[type] = LinearAttentionConfig

    @classmethod
    def supports(cls, config: LinearAttentionConfig) -> Support:
        if config.rule != cls.name:
            return Support.no(f"the layers' rule is {config.rule}")
        if ops.references_allowed():
            return Support.yes()
        torch_type = config.capabilities.torch_type
        missing = [
            name for name in ("causal_conv1d", cls.name) if not ops.has_kernel(name, torch_type)
        ]
        if missing:
            return Support.no(
                f"the operator library has no {', '.join(missing)} for it, and their PyTorch "
                "references are slow: allow them with --allow-reference-ops"
            )
        return Support.yes()


class GatedDeltaRuleBackend(LinearAttentionBackend):
    """Layers with gated delta nets."""

    name: ClassVar[str] = "gated_delta_rule"

    def attend(
        self, qkv: Tensor, ba: Tensor, layer: int, weights: DeltaRuleWeights, batch: ForwardBatch
    ) -> Tensor:
        """Compute [T, Hv, Dv] from the projections qkv [T, C] and ba [T, 2 Hv]; see the operators.

        The states after the step's tokens are written to the layer's cache.
        """
        batch.wait_for_layer(layer)
        inputs, *states = batch.states[layer]
        step = _step(layer, batch)
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


class Mamba2Backend(LinearAttentionBackend):
    """Layers of Mamba-2."""

    name: ClassVar[str] = "mamba2_scan"

    def attend(
        self, xbc: Tensor, dt: Tensor, layer: int, weights: Mamba2Weights, batch: ForwardBatch
    ) -> Tensor:
        """Compute [T, H, P] from the projections xbc [T, C] and dt [T, H]; see the operators.

        The states after the step's tokens are written to the layer's cache.
        """
        batch.wait_for_layer(layer)
        inputs, *states = batch.states[layer]
        step = _step(layer, batch)
        # As in the gated delta rule's layers, only what gives these kernels xbc may still run.
        mixed = ops.causal_conv1d(
            xbc, weights.conv, inputs, *step, early=True, bias=weights.conv_bias
        )
        state, ring_k, ring_u, ring_g, folded = states
        out = ops.mamba2_scan(
            mixed,
            dt,
            weights.a_log,
            weights.dt_bias,
            weights.d,
            state,
            ring_k,
            ring_u,
            ring_g,
            folded,
            *step,
            *weights.dt_limits,
            early=True,
        )
        batch.layer_written(layer)
        return out


def _step(layer: int, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """The arguments of all operators that say where the step's tokens and states are."""
    group = batch.layer_group[layer]
    return (
        batch.cu_seqlens_q,
        batch.seq_lens,
        batch.state_read[group],
        batch.state_write[group],
        batch.max_seqlen_q,
    )
