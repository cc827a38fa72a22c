# SPDX-License-Identifier: Apache-2.0
"""The XPU device where there is none: operators are the SYCL kernels, tensors are the CPU's in USM.

RTP_LLM_DEVICE_TYPE=xpu and RTP_LLM_DEVICE_CLASS=rtp_llm.testing.xpu.host_device:HostXpuDevice
choose it, with the bridge as RTP_LLM_OPS_LIBRARY.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Support
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.ops import huge_pages
from rtp_llm.testing.xpu.host_backend import BACKEND, bridge


class _Torch:
    """What a device uses of torch; host memory is as good as pinned."""

    __version__ = torch.__version__
    version = SimpleNamespace(xpu="the bridge")
    distributed = torch.distributed

    def __init__(self, backend: object) -> None:
        self.xpu = backend

    def empty(
        self, shape: Any, dtype: torch.dtype, pin_memory: bool = False, **where: Any
    ) -> Tensor:
        return torch.empty(shape, dtype=dtype, **where)


class HostXpuDevice(XpuDevice):
    """Any SYCL device, the CPU where there is no GPU, that works on torch's CPU tensors."""

    def __init__(self, torch_module: object, *args: Any) -> None:
        """The device's own torch replaces `torch_module`."""
        ops.load()  # before the first tensor: tensors made from here on are in USM
        # Both map memory that no device knows.
        huge_pages.empty, huge_pages._LARGEST_SHARED = _empty, 0
        super().__init__(_Torch(BACKEND), *args)
        self.torch_device = torch.device("cpu")

    def available(self) -> Support:
        return Support.yes()

    def description(self) -> str:
        memory = self.memory_info().total / 2**30
        return f"xpu in host memory (SYCL: {bridge.device_name()}, {memory:.0f} GiB)"


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")
