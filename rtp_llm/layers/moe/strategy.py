# SPDX-License-Identifier: Apache-2.0
"""Picks the executor that computes the experts, and explains the choice."""

from __future__ import annotations

from rtp_llm.device import Support
from rtp_llm.device.choice import AUTO, ask, choose, load_class, outcomes
from rtp_llm.layers.moe.executor import Executor, ExpertContext

# Each is imported only when an executor is chosen.
_EXECUTORS = (
    "rtp_llm.layers.moe.plain:PlainExecutor",
    "rtp_llm.layers.moe.fp8_experts:Fp8Executor",
    "rtp_llm.layers.moe.fp8_experts:Fp8MaskedExecutor",
    "rtp_llm.layers.moe.fp8_experts:Fp8ContiguousExecutor",
    "rtp_llm.layers.moe.fp8_channel_experts:Fp8ChannelExecutor",
    "rtp_llm.layers.moe.gguf_experts:GgufExecutor",
    "rtp_llm.layers.moe.mxfp4_experts:Mxfp4Executor",
    "rtp_llm.layers.moe.mxfp4_fused:Mxfp4FusedExecutor",
    "rtp_llm.layers.moe.wna16_experts:Wna16Executor",
    "rtp_llm.layers.moe.table4_experts:Table4Executor",
    "rtp_llm.layers.moe.triton_biased:TritonBiasedExecutor",
    "rtp_llm.layers.moe.triton_experts:TritonExecutor",
)
_SETTING = "--moe-strategy"


def choose_executor(context: ExpertContext, forced: str = AUTO) -> type[Executor]:
    """Return the supporting executor of highest priority, or the one named `forced`.

    Raises NoChoiceError with the reason of each rejection, or the known names if `forced` is
    unknown.
    """
    return choose(_ask(context), forced, _SETTING, f"experts for {context.describe()}")


def explain(context: ExpertContext, forced: str = AUTO) -> str:
    """Describe the choice and every rejection, one executor per line, highest priority first."""
    answers = _ask(context)
    lines = [f"experts for {context.describe()}:"]
    for (kind, _), outcome in zip(answers, outcomes(answers, forced, _SETTING), strict=True):
        lines.append(f"  {kind.name} (priority {kind.priority}): {outcome}")
    return "\n".join(lines)


def _ask(context: ExpertContext) -> list[tuple[type[Executor], Support]]:
    return ask(map(load_class, _EXECUTORS), context, lambda kind: kind.priority)
