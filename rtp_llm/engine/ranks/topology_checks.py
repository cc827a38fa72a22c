# SPDX-License-Identifier: Apache-2.0
"""What several ranks cannot do for a model and its settings is refused before any is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.config.refusals import get_refusal
from rtp_llm.engine.messages import EngineStartError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.models.config import ModelConfig

_TENSOR = "--tensor-parallel-size"
_PIPELINE = "--pipeline-parallel-size"


def check_topology(settings: Settings, config: ModelConfig, device: Device) -> None:
    """Raise EngineStartError for the first row of the table of refusals that they fall under."""
    _check_experts(settings)
    for flag, size in _sizes(settings).items():
        if size > 1:
            _check_together(flag, size, settings, config)
    if settings.pipeline_parallel_size > 1:
        _check_stages(settings, config)
    if settings.ranks_per_engine > 1 or (settings.data_parallel_size > 1 and config.moe):
        _check_collectives(device)
    if settings.ranks_per_engine > 1:
        _check_devices(settings, device)
        _check_heads(settings.tensor_parallel_size, config)


def _sizes(settings: Settings) -> dict[str, int]:
    return {
        _TENSOR: settings.tensor_parallel_size,
        _PIPELINE: settings.pipeline_parallel_size,
    }


def _check_experts(settings: Settings) -> None:
    experts = settings.expert_parallel_size
    data, tensor = settings.data_parallel_size, settings.tensor_parallel_size
    if experts not in (None, data * tensor):
        said = (
            f"expert_parallel_size={experts}, data_parallel_size={data} x "
            f"tensor_parallel_size={tensor} = {data * tensor}"
        )
        _refuse("--expert-parallel-size", said)


def _check_together(flag: str, size: int, settings: Settings, config: ModelConfig) -> None:
    """What ranks of either kind cannot do; ``flag`` says of which kind there are ``size``."""
    ranks = f"{flag[2:].replace('-', '_')}={size}"
    if flag == _PIPELINE and config.moe is not None and settings.data_parallel_size > 1:
        name = f"{flag} with --data-parallel-size for a mixture of experts"
        _refuse(name, f"{ranks}, data_parallel_size={settings.data_parallel_size}")
    if settings.role != "both" and settings.kv_transport not in ("auto", "tcp"):
        said = f"{ranks}, kv_transport={settings.kv_transport}"
        _refuse("--kv-transport of several ranks", said)


def _check_stages(settings: Settings, config: ModelConfig) -> None:
    stages = f"pipeline_parallel_size={settings.pipeline_parallel_size}"
    if settings.pipeline_parallel_size > config.num_layers:
        said = f"{stages}, {config.num_layers} layers"
        _refuse(f"{_PIPELINE} above the number of layers", said)
    if config.mla is not None and config.mla.indexer is not None:
        _refuse(f"{_PIPELINE} for a model with an indexer", stages)
    own = config.gemma4
    if own is not None and (own.shared_layers or own.per_layer_size):
        said = f"num_kv_shared_layers={own.shared_layers}"
        said += f", hidden_size_per_layer_input={own.per_layer_size}"
        _refuse(f"{_PIPELINE} with layers that read what the first ones have", f"{stages}, {said}")
    if settings.role != "both":
        _refuse(f"{_PIPELINE} with --role", f"{stages}, role={settings.role}")
    if settings.speculative != "none":
        said = f"{stages}, speculative={settings.speculative}"
        _refuse(f"{_PIPELINE} with --speculative", said)
    if settings.enable_overlap:
        _refuse(f"{_PIPELINE} with --enable-overlap", f"{stages}, enable_overlap=on")


def _check_collectives(device: Device) -> None:
    has = device.has_collectives()
    if not has:
        row = get_refusal("device", "collectives", device.name)
        raise EngineStartError(f"{row.message_on(device.name)} ({has.reason})")


def _check_devices(settings: Settings, device: Device) -> None:
    visible = device.device_count()
    if not device.shares_memory and settings.local_ranks > visible:
        sizes = settings.data_parallel_size, *reversed(_sizes(settings).values())
        product = " x ".join(map(str, sizes))
        said = f"{product} = {settings.num_ranks} ranks, {visible} visible devices"
        if settings.nnodes > 1:
            said += f" on each of {settings.nnodes} nodes"
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
