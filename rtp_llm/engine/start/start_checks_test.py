# SPDX-License-Identifier: Apache-2.0
"""Tests of what is refused at the start, before the model's folder is looked at."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rtp_llm import ops
from rtp_llm.config.settings import Settings
from rtp_llm.device import DeviceError
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.start import build
from rtp_llm.engine.start.start_checks import (
    check_model,
    check_operators,
    check_settings,
    check_step_size,
)
from rtp_llm.testing.fake_torch import FakeTorch
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.warm_up import StepLimits

KINDS = {kind.name: kind for kind in (CudaDevice, RocmDevice, XpuDevice)}
GPUS = pytest.mark.parametrize("name", KINDS)


def gpu(name, environ=None, count=2):
    return KINDS[name](FakeTorch(**{name: count}), environ or {})


def start(device, monkeypatch, **settings):
    """Begin to build an engine for a model that is not there."""
    monkeypatch.setattr(build, "resolve_device", lambda requested: device)
    build.build_engine(Settings(model="/no/such/model", **settings))


@pytest.mark.parametrize(
    ("quantization", "feature", "what"),
    [("int8", "int8_weights", "weights"), ("w8a8_int8", "int8_products", "products")],
)
def test_int8_weights_and_products(quantization, feature, what, monkeypatch):
    message = (
        f"{feature} is not supported on rocm: Int8 {what} have no kernels there. "
        rf"Leave --quantization out. \(--quantization {quantization}\)"
    )
    with pytest.raises(DeviceError, match=message):
        start(gpu("rocm"), monkeypatch, quantization=quantization)
    check_settings(Settings(quantization=quantization), gpu("xpu"))


def test_int4_weights(monkeypatch):
    message = (
        r"int4_weights is not supported on rocm: 4-bit weights have no kernels there. "
        r"Leave --quantization out. \(--quantization int4\)"
    )
    with pytest.raises(DeviceError, match=message):
        start(gpu("rocm"), monkeypatch, quantization="int4")
    check_settings(Settings(quantization="int4"), gpu("xpu"))


@pytest.mark.parametrize("name", ["rocm", "xpu"])
def test_a_kv_cache_of_eight_bits(name, monkeypatch):
    message = (
        f"quantized_kv_cache is not supported on {name}: The kernels keep the KV cache in the type "
        r"of the activations. Leave --kv-cache-dtype out, .* \(--kv-cache-dtype fp8_e4m3\)"
    )
    with pytest.raises(DeviceError, match=message):
        start(gpu(name), monkeypatch, kv_cache_dtype="fp8_e4m3")


def test_host_memory_for_blocks_that_are_fetched_from_the_cache(monkeypatch):
    message = (
        "--cache-store-mem-mb is not supported on cpu: Blocks are fetched from the KV cache "
        "itself; no other memory holds them. Leave it out; --kv-cache-mem-mb says "
    )
    with pytest.raises(DeviceError, match=message):
        start(CpuDevice(), monkeypatch, role="prefill", cache_store_mem_mb=64)
    check_settings(Settings(role="prefill"), CpuDevice())


@GPUS
def test_libraries_that_read_no_memory_of_gpus(name, monkeypatch):
    with pytest.raises(DeviceError, match=r"--kv-transport mooncake is not supported on"):
        start(gpu(name), monkeypatch, role="prefill", kv_transport="mooncake")
    for transport in ("auto", "tcp"):
        check_settings(Settings(role="prefill", kv_transport=transport), gpu(name))


@pytest.mark.parametrize("name", ["rocm", "xpu"])
def test_nixl_reads_memory_of_one_vendors_gpus(name, monkeypatch):
    message = rf"memory_export is not supported on {name}: .* \(--kv-transport nixl\)"
    with pytest.raises(DeviceError, match=message):
        start(gpu(name), monkeypatch, role="decode", kv_transport="nixl")
    check_settings(Settings(role="prefill", kv_transport="nixl"), CpuDevice())
    check_settings(Settings(kv_transport="nixl"), gpu(name))  # of another role


def test_memory_that_no_other_process_can_open(monkeypatch):
    asked = Settings(role="prefill", kv_transport="nixl")
    check_settings(asked, gpu("cuda"))
    for variable, value in (
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, expandable_segments : true"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"),
    ):
        device = gpu("cuda", {variable: value})
        message = rf"not supported on cuda: {variable}=\w+:\w+ gives .* \(--kv-transport nixl\)"
        with pytest.raises(DeviceError, match=message):
            check_settings(asked, device)
        check_settings(Settings(role="prefill"), device)
    check_settings(asked, gpu("cuda", {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}))


def test_host_memory_for_blocks_that_nixl_reads_from_the_cache():
    asked = Settings(role="prefill", kv_transport="nixl", cache_store_mem_mb=64)
    with pytest.raises(DeviceError, match="--cache-store-mem-mb with --kv-transport nixl"):
        check_settings(asked, gpu("cuda"))


@GPUS
def test_a_gpu_has_host_memory_for_blocks(name):
    check_settings(Settings(role="prefill", cache_store_mem_mb=64), gpu(name))


OF_FP8_PRODUCTS = pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("deep_gemm_use_swap_ab", True),
        ("deep_gemm_swap_ab_rows", 0),
        ("deep_gemm_swap_ab_rows", 64),
        ("deep_gemm_num_sm", 8),
    ],
)


@OF_FP8_PRODUCTS
@pytest.mark.parametrize("name", ["cpu", "rocm", "xpu"])
def test_what_only_fp8_products_read_is_refused_where_there_are_none(
    name, setting, value, monkeypatch
):
    device = CpuDevice() if name == "cpu" else gpu(name)
    flag = "--" + setting.replace("_", "-")
    message = rf"fp8_products .* {name}: .* Leave --quantization and --deep-gemm-\* .* \({flag}\)"
    with pytest.raises(DeviceError, match=message):
        start(device, monkeypatch, **{setting: value})
    check_settings(Settings(deep_gemm_use_swap_ab=False), device)
    check_settings(Settings(), device)


@OF_FP8_PRODUCTS
def test_the_same_for_a_model_that_has_none(setting, value):
    settings, flag = Settings(**{setting: value}), "--" + setting.replace("_", "-")
    floats, blocks = (SimpleNamespace(stored_in_fp8_blocks=stored) for stored in (False, True))
    message = rf"nothing else reads them\. Leave --deep-gemm-\* out, .* fp8\. \({flag}\)"
    with pytest.raises(DeviceError, match=message):
        check_model(settings, floats)
    check_model(settings, blocks)
    check_model(Settings(quantization="fp8", **{setting: value}), floats)
    check_model(Settings(deep_gemm_use_swap_ab=False), floats)


def test_a_models_floats_are_seen_at_the_start(tmp_path, monkeypatch):
    save_model(tmp_path, "qwen3")
    monkeypatch.setattr(build, "prepare", lambda settings, device: None)
    with pytest.raises(DeviceError, match="settings of FP8 products without any"):
        build.build_engine(Settings(model=str(tmp_path), device_type="cpu", deep_gemm_num_sm=8))


@GPUS
def test_memory_that_a_cache_leaves_free_is_a_gpus(name, monkeypatch):
    message = "--reserve-runtime-mem-mb is not supported on cpu: .* --kv-cache-mem-mb sets"
    with pytest.raises(DeviceError, match=message):
        start(CpuDevice(), monkeypatch, reserve_runtime_mem_mb=64)
    check_settings(Settings(), CpuDevice())
    check_settings(Settings(reserve_runtime_mem_mb=64), gpu(name))


@GPUS
def test_one_model_over_several_processes(name, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"WORLD_SIZE of another launcher is not supported: .* \(WORLD_SIZE=2\)"
    for device in (gpu(name), CpuDevice()):
        with pytest.raises(DeviceError, match=message):
            start(device, monkeypatch)


@pytest.mark.parametrize("name", ["rocm", "xpu"])
def test_one_model_over_several_devices(name, monkeypatch):
    for flag in ("--tensor-parallel-size", "--pipeline-parallel-size"):
        message = rf"tensor_parallel is not supported on {name}: .* \({flag} 2\)"
        chosen = {flag[2:].replace("-", "_"): 2}
        with pytest.raises(DeviceError, match=message):
            start(gpu(name), monkeypatch, **chosen)


@pytest.mark.parametrize("flag", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_what_was_never_run_is_allowed_aloud_where_it_was_written(flag, caplog):
    chosen = Settings(allow_untested_device=True, **{flag: 2})
    check_settings(chosen, gpu("rocm"))
    assert f"--{flag.replace('_', '-')} 2 on rocm was never run" in caplog.text
    with pytest.raises(DeviceError, match="tensor_parallel is not supported on xpu"):
        check_settings(chosen, gpu("xpu"))
    with pytest.raises(DeviceError, match="int8_weights is not supported on rocm"):
        check_settings(replace(chosen, quantization="int8"), gpu("rocm"))
    with pytest.raises(DeviceError, match="Set --allow-untested-device to try"):
        check_settings(replace(chosen, allow_untested_device=False), gpu("rocm"))


@GPUS
def test_a_group_that_does_not_fit_is_refused_first(name, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    message = "world_size 3 must be a multiple of local device count 2"
    with pytest.raises(DeviceError, match=message):
        start(gpu(name), monkeypatch)


def test_a_number_type_that_the_device_lacks(monkeypatch):
    row = "it has no such arithmetic"
    monkeypatch.setattr(CpuDevice, "refused", {"bfloat16": row})
    with pytest.raises(KeyError, match="bfloat16"):  # a refusal that the table does not have
        start(CpuDevice(), monkeypatch, dtype="bfloat16")


def test_a_page_size_that_is_none(monkeypatch):
    device = gpu("xpu", {"XPU_SEQ_SIZE_PER_BLOCK": "48"})
    with pytest.raises(DeviceError, match="XPU_SEQ_SIZE_PER_BLOCK='48'"):
        start(device, monkeypatch)


@GPUS
def test_an_operator_without_a_kernel(name, monkeypatch):
    unused = ["rotate_and_store"]
    if name == "rocm":
        unused += ["int8_linear", "w8a8_int8_linear"]
    monkeypatch.setattr(ops, "operators_without_kernel", lambda kind: ["sample", *unused])
    message = (
        rf"operator without a kernel is not supported on {name}: .* --allow-reference-ops\. "
        r"\(sample\)$"
    )
    with pytest.raises(DeviceError, match=message):
        start(gpu(name), monkeypatch)
    check_operators(Settings(allow_reference_ops=True), gpu(name))
    monkeypatch.setattr(ops, "operators_without_kernel", lambda kind: unused)
    check_operators(Settings(), gpu(name))


def test_the_cpu_has_every_kernel_and_takes_every_setting():
    for dtype, quantization in (
        *((dtype, "int8") for dtype in ("auto", "float32", "bfloat16", "float16")),
        ("auto", "w8a8_int8"),
    ):
        settings = Settings(dtype=dtype, quantization=quantization)
        check_settings(settings, CpuDevice(), {"WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    check_operators(Settings(), CpuDevice())
    assert "rms_norm" in ops.operators_without_kernel("xpu") or ops.kernel_calls("rms_norm") >= 0


def test_a_model_that_is_not_there_comes_after(monkeypatch):
    with pytest.raises(ValueError, match=r"/no/such/model/config.json is missing"):
        start(CpuDevice(), monkeypatch)


def test_a_step_of_a_model_with_recurrent_layers_holds_a_block():
    small = StepLimits(max_batch_tokens=15, max_running=1, max_model_len=64, block_size=16)
    check_step_size(small, recurrent=False)
    check_step_size(replace(small, max_batch_tokens=16), recurrent=True)
    words = (
        "max_batch_tokens_size=15 is below seq_size_per_block=16: .* raise max_batch_tokens_size"
    )
    with pytest.raises(EngineStartError, match=words):
        check_step_size(small, recurrent=True)
