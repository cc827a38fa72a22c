"""What several ranks cannot do for a model and its settings is refused before any is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.config.refusals import get_refusal
from rtp_llm.engine.messages import EngineStartError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.models.config import ModelConfig


def check_topology(settings: Settings, config: ModelConfig, device: Device) -> None:
    """Raise EngineStartError for the first row of the table of refusals that they fall under."""
    _check_sizes(settings)
    if settings.tensor_parallel_size == 1:
        return
    _check_together(settings, config)
    _check_devices(settings, device)
    _check_heads(settings.tensor_parallel_size, config)


def _check_sizes(settings: Settings) -> None:
    stages, experts = settings.pipeline_parallel_size, settings.expert_parallel_size
    if stages > 1:
        _refuse("--pipeline-parallel-size", f"pipeline_parallel_size={stages}")
    if experts not in (None, settings.data_parallel_size):
        data = settings.data_parallel_size
        said = f"expert_parallel_size={experts}, data_parallel_size={data}"
        _refuse("--expert-parallel-size", said)


def _check_together(settings: Settings, config: ModelConfig) -> None:
    tensor = f"tensor_parallel_size={settings.tensor_parallel_size}"
    if config.moe is not None and settings.data_parallel_size > 1:
        name = "--tensor-parallel-size with --data-parallel-size for a mixture of experts"
        _refuse(name, f"{tensor}, data_parallel_size={settings.data_parallel_size}")
    if settings.role != "both" and settings.kv_transport not in ("auto", "tcp"):
        said = f"{tensor}, kv_transport={settings.kv_transport}"
        _refuse("--kv-transport of several ranks", said)


def _check_devices(settings: Settings, device: Device) -> None:
    visible = device.device_count()
    if not device.shares_memory and settings.num_ranks > visible:
        data, tensor = settings.data_parallel_size, settings.tensor_parallel_size
        said = f"{data} x {tensor} = {settings.num_ranks} ranks, {visible} visible devices"
        _refuse("more ranks than devices", said)


def _check_heads(ranks: int, config: ModelConfig) -> None:
    heads, kv_heads = config.num_heads, config.num_kv_heads
    shared = config.mla is None and kv_heads % ranks and ranks % kv_heads
    if heads % ranks or shared:
        said = (
            f"tensor_parallel_size={ranks}, num_attention_heads={heads} = {ranks} x "
            f"{heads // ranks} + {heads % ranks}, num_key_value_heads={kv_heads}"
        )
        _refuse("--tensor-parallel-size that does not divide the attention heads", said)


def _refuse(name: str, said: str) -> None:
    raise EngineStartError(f"{get_refusal('ranks', name).message} ({said})")
