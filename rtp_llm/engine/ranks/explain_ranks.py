# SPDX-License-Identifier: Apache-2.0
"""What `rtp-llm explain` says about ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.distributed.symmetric_dispatch import explain_dispatch
from rtp_llm.distributed.symmetric_reduce import explain_sums
from rtp_llm.engine.ranks.topology import Topology
from rtp_llm.loader import plan_stages
from rtp_llm.models.stages import describe_stages

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device


def explain_ranks(settings: Settings, device: Device, *, is_mixture: bool) -> str:
    """Which rank has which device and layers, and what makes sums of a stage and moves tokens."""
    tensor, stages = settings.tensor_parallel_size, [""]
    if settings.pipeline_parallel_size > 1:
        stages = describe_stages(stage_layers_of(settings, device))
    topology = Topology.of(settings, is_mixture=is_mixture)
    lines = [topology.table(device.name, stages)]
    if not all(map(topology.part_on_one_node, range(topology.size))):
        lines.append(f"  sums: by {device.collectives}, where their ranks are on several nodes")
    elif tensor > 1:
        lines.append(f"  sums: {explain_sums(device, tensor)}")
    if settings.data_parallel_size > 1 and is_mixture:
        lines.append(f"  tokens: {explain_dispatch(device, settings.data_parallel_size)}")
    return "\n".join(lines)


def stage_layers_of(settings: Settings, device: Device) -> list[range]:
    """The layers of each stage of the model that is asked for."""
    return plan_stages(
        settings.model,
        device=device,
        settings=settings,
        stages=settings.pipeline_parallel_size,
        tensor_parallel_size=settings.tensor_parallel_size,
    )
