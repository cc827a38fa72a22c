"""What `rtp-llm explain` says about ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.distributed.symmetric_dispatch import explain_dispatch
from rtp_llm.distributed.symmetric_reduce import explain_sums
from rtp_llm.engine.tensor.topology import Topology

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device


def explain_ranks(settings: Settings, device: Device, *, is_mixture: bool) -> str:
    """Which rank has which device, and what makes sums and brings tokens to experts."""
    lines = [Topology.of(settings, is_mixture=is_mixture).table(device.name)]
    if settings.tensor_parallel_size > 1:
        lines.append(f"  sums: {explain_sums(device, settings.tensor_parallel_size)}")
    if settings.data_parallel_size > 1 and is_mixture:
        lines.append(f"  tokens: {explain_dispatch(device, settings.data_parallel_size)}")
    return "\n".join(lines)
