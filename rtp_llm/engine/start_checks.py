"""What the device cannot do for these settings is refused before any file is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rtp_llm import ops
from rtp_llm.config.refusals import find_refusal, get_refusal
from rtp_llm.device import DeviceError, Ranks
from rtp_llm.distributed.membership import Membership

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device

_QUANTIZATION = {"int8": "int8_weights", "fp8": "fp8_products"}
# Operators that only a capability needs, and one that only the fused path of some devices calls.
_OPERATORS_OF = {"int8_weights": "int8_linear"}
_FOR_OTHERS = "rotate_and_store"


def check_settings(
    settings: Settings, device: Device, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise DeviceError for the first thing in `settings` or `environ` that is not supported."""
    ranks = Ranks.read(environ)
    if ranks.world_size > 1:
        device.check_group(ranks)
    if ranks.world_size > 1 and Membership.read(environ) is None:
        _require(device, "tensor_parallel", f"WORLD_SIZE={ranks.world_size}")
    if settings.dtype != "auto":
        _require(device, settings.dtype, f"--dtype {settings.dtype}")
    if settings.quantization in _QUANTIZATION:
        feature = _QUANTIZATION[settings.quantization]
        _require(device, feature, f"--quantization {settings.quantization}")
    if settings.deep_gemm_use_swap_ab:
        _require(device, "fp8_products", "--deep-gemm-use-swap-ab")
    if settings.kv_cache_dtype != "auto":
        _require(device, "quantized_kv_cache", f"--kv-cache-dtype {settings.kv_cache_dtype}")
    host_memory = find_refusal("separation", "--cache-store-mem-mb", device.name)
    if host_memory and settings.cache_store_mem_mb is not None:
        raise DeviceError(host_memory.message_on(device.name))


def check_operators(settings: Settings, device: Device) -> None:
    """Raise DeviceError where operators have no kernel on the device and must not be replaced."""
    missing = missing_operators(device)
    if missing and not settings.allow_reference_ops:
        row = get_refusal("device", "operator without a kernel", device.name)
        raise DeviceError(f"{row.message_on(device.name)} ({', '.join(missing)})")


def missing_operators(device: Device) -> list[str]:
    """Operators that the engine calls and that have no kernel on the device."""
    unused = [name for feature, name in _OPERATORS_OF.items() if not device.supports(feature)]
    missing = ops.operators_without_kernel(device.torch_device.type)
    return [name for name in missing if name not in (*unused, _FOR_OTHERS)]


def _require(device: Device, feature: str, asked: str) -> None:
    if not (answer := device.supports(feature)):
        text = f"{feature} is not supported on {device.name}: {answer.reason}."
        # What only some devices of a type lack has its reason from the one that is there.
        if feature in device.refused:
            text = get_refusal("device", feature, device.name).message_on(device.name)
        raise DeviceError(f"{text} ({asked})")
