# SPDX-License-Identifier: Apache-2.0
"""Intel GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch.profiler import ProfilerActivity

from rtp_llm.device.accelerator import AcceleratorDevice
from rtp_llm.device.base import DeviceError, Support

BLOCK_SIZE_VARIABLE = "XPU_SEQ_SIZE_PER_BLOCK"
_BLOCK_SIZE = 64


class XpuDevice(AcceleratorDevice):
    """An Intel GPU, or a tile of one, through torch.xpu."""

    name: ClassVar[str] = "xpu"
    torch_type: ClassVar[str] = "xpu"
    collectives: ClassVar[str] = "xccl"
    max_head_dim: ClassVar[int | None] = 256
    profiler_activity: ClassVar[ProfilerActivity] = ProfilerActivity.XPU
    asynchronous: ClassVar[bool] = False  # it is, but overlapping steps are untested
    mask_variables: ClassVar[tuple[str, ...]] = ("ZE_AFFINITY_MASK",)
    refused: ClassVar[Mapping[str, str]] = {
        "quantized_kv_cache": "the kernels keep the KV cache in the type of the activations",
        "fp8_products": "there are no kernels for FP8 products",
        "graph_capture": "SYCL graphs are not used yet; steps run eagerly",
        "tensor_parallel": "one model over several devices has not been tried there",
        "memory_export": "NIXL's packages read the memory of the host and of NVIDIA's GPUs only",
    }

    def fits_torch(self) -> Support:
        # The module itself is in every build of PyTorch.
        if getattr(self._torch.version, "xpu", None) is None:
            return Support.no(f"PyTorch {self._torch.__version__} was built without XPU")
        return Support.yes()

    def default_block_size(self) -> int:
        text = self._environ.get(BLOCK_SIZE_VARIABLE, "").strip()
        if not text:
            return _BLOCK_SIZE
        size = int(text) if text.isdecimal() else 0
        if size < 1 or size & (size - 1):
            raise DeviceError(f"{BLOCK_SIZE_VARIABLE}={text!r} is not a positive power of two")
        return size
