# SPDX-License-Identifier: Apache-2.0
"""What the device cannot do for these settings is refused before any file is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rtp_llm import ops
from rtp_llm.config.options import flag_name
from rtp_llm.config.refusals import find_refusal, get_refusal
from rtp_llm.device import DeviceError, Ranks
from rtp_llm.distributed.membership import Membership
from rtp_llm.engine.messages import EngineStartError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.models.config import ModelConfig
    from rtp_llm.worker.speculative.proposer import Proposer
    from rtp_llm.worker.warm_up import StepLimits

_logger = logging.getLogger("rtp_llm.engine")
_QUANTIZATION = {
    "int8": "int8_weights",
    "w8a8_int8": "int8_products",
    "int4": "int4_weights",
    "fp8": "fp8_products",
}
# Operators that only a feature needs, and one that only the fused path of some devices calls.
_OPERATORS_OF = {"int8_weights": "int8_linear", "int8_products": "w8a8_int8_linear"}
_FOR_OTHERS = "rotate_and_store"


def check_settings(
    settings: Settings, device: Device, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise DeviceError for the first thing in `settings` or `environ` that is not supported."""
    ranks = Ranks.read(environ)
    if ranks.world_size > 1:
        device.check_group(ranks)
    if ranks.world_size > 1 and Membership.read(environ) is None:
        reason = get_refusal("ranks", "WORLD_SIZE of another launcher").message
        raise DeviceError(f"{reason} (WORLD_SIZE={ranks.world_size})")
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (size := getattr(settings, name)) > 1:
            _require_tried(settings, device, "tensor_parallel", f"{flag_name(name)} {size}")
    if settings.dtype != "auto":
        _require(device, settings.dtype, f"--dtype {settings.dtype}")
    if settings.quantization in _QUANTIZATION:
        feature = _QUANTIZATION[settings.quantization]
        _require(device, feature, f"--quantization {settings.quantization}")
    for flag in _of_fp8_products(settings):
        _require(device, "fp8_products", flag)
    if settings.kv_cache_dtype != "auto":
        _require(device, "quantized_kv_cache", f"--kv-cache-dtype {settings.kv_cache_dtype}")
    if settings.role != "both" and settings.kv_transport == "nixl":
        _require(device, "memory_export", "--kv-transport nixl")
    if settings.seq_size_per_block is None:
        device.default_block_size()  # which the environment may say wrongly
    holds_blocks = settings.cache_store_mem_mb is not None
    for area, flag, requested in (
        ("disaggregation", "--cache-store-mem-mb", holds_blocks),
        (
            "disaggregation",
            f"--cache-store-mem-mb with --kv-transport {settings.kv_transport}",
            holds_blocks,
        ),
        ("disaggregation", f"--kv-transport {settings.kv_transport}", settings.role != "both"),
        ("device", "--reserve-runtime-mem-mb", settings.reserve_runtime_mem_mb != 0),
    ):
        if requested and (row := find_refusal(area, flag, device.name)):
            raise DeviceError(row.message_on(device.name))


def check_model(settings: Settings, config: ModelConfig) -> None:
    """Raise DeviceError where settings of FP8 products are for a model that has none."""
    if settings.quantization == "fp8" or config.stored_in_fp8_blocks:
        return
    if flags := _of_fp8_products(settings):
        row = get_refusal("model", "settings of FP8 products without any")
        raise DeviceError(f"{row.message} ({', '.join(flags)})")


def check_drafts(settings: Settings, proposer: Proposer, rollback: int | None) -> None:
    """Raise EngineStartError where drafts are proposed for an engine that cannot verify them.

    ``rollback``: of CacheGroups.
    """
    if settings.speculative_model and not settings.reads_folder:
        raise EngineStartError(
            "speculative_model: only --speculative eagle3 and draft-model read it"
        )
    probabilistic = settings.draft_sample_method == "probabilistic"
    if probabilistic and not settings.samples_drafts:
        name = "--draft-sample-method probabilistic without a model that drafts"
        row = get_refusal("speculation", name)
        raise EngineStartError(f"{row.message} (--speculative {settings.speculative})")
    if rollback is not None and rollback < proposer.max_draft_tokens:
        name = "speculative decoding of more drafts than recurrent states go back"
        raise EngineStartError(get_refusal("speculation", name).message)


def check_step_size(limits: StepLimits, *, recurrent: bool) -> None:
    """Raise EngineStartError where a step is too small for a model with ``recurrent`` layers."""
    if recurrent and limits.max_batch_tokens < limits.block_size:
        raise EngineStartError(
            f"max_batch_tokens_size={limits.max_batch_tokens} is below seq_size_per_block="
            f"{limits.block_size}: recurrent layers keep their state at the end of a block, so a "
            "step must hold a whole one: raise max_batch_tokens_size"
        )


def _of_fp8_products(settings: Settings) -> list[str]:
    """Flags that only these read, where they are set."""
    values = {
        "--deep-gemm-use-swap-ab": settings.deep_gemm_use_swap_ab or None,
        "--deep-gemm-swap-ab-rows": settings.deep_gemm_swap_ab_rows,
        "--deep-gemm-num-sm": settings.deep_gemm_num_sm,
    }
    return [flag for flag, value in values.items() if value is not None]


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


def _require_tried(settings: Settings, device: Device, feature: str, requested: str) -> None:
    """As _require, unless all that is missing is that somebody has run it."""
    if settings.allow_untested_device and feature in device.untested:
        _logger.warning("%s on %s was never run: check its answers", requested, device.name)
        return
    _require(device, feature, requested)


def _require(device: Device, feature: str, requested: str) -> None:
    if not (answer := device.supports(feature)):
        text = f"{feature} is not supported on {device.name}: {answer.reason}."
        # What only some devices of a type lack has its reason from the one that is there.
        if feature in device.refused:
            text = get_refusal("device", feature, device.name).message_on(device.name)
        raise DeviceError(f"{text} ({requested})")
