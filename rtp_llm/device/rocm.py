# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: PyTorch built for HIP shows them as torch.cuda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch.profiler import ProfilerActivity

from rtp_llm.device.accelerator import AcceleratorDevice
from rtp_llm.device.base import Support


class RocmDevice(AcceleratorDevice):
    """An AMD GPU through HIP; collectives are RCCL under NCCL's name."""

    name: ClassVar[str] = "rocm"
    torch_type: ClassVar[str] = "cuda"
    collectives: ClassVar[str] = "nccl"
    graphs_by_default: ClassVar[bool] = False
    kernel_features: ClassVar[frozenset[str]] = frozenset(("one_pass_rotation",))
    max_head_dim: ClassVar[int | None] = 512
    # The thread that watches collectives asks HIP for their events, which spoils a capture that
    # goes on meanwhile (hipErrorCapturedEvent, https://github.com/pytorch/pytorch/pull/175377).
    # With blocking waits it is given none; errors are not handled in the background, and nothing
    # watches that thread. Results of captured collectives are in the graph's pool, so their
    # addresses stay.
    collectives_environment: ClassVar[Mapping[str, str]] = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    profiler_activity: ClassVar[ProfilerActivity] = ProfilerActivity.CUDA
    # HIP applies its mask to the devices that ROCr leaves, so ROCr's mask lists no HIP devices.
    mask_variables: ClassVar[tuple[str, ...]] = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    other_variables: ClassVar[tuple[str, ...]] = ("ROCR_VISIBLE_DEVICES",)
    mask_end: ClassVar[str | None] = "-1"
    refused: ClassVar[Mapping[str, str]] = {
        "int8_weights": "int8 weights have no kernels there",
        "int4_weights": "4-bit weights have no kernels there",
        "int8_products": "int8 products have no kernels there",
        "quantized_kv_cache": "the kernels keep the KV cache in the type of the activations",
        "fp8_products": "there are no kernels for FP8 products",
        "tensor_parallel": "one model over several devices has not been tried there",
        "memory_export": "NIXL's packages read the memory of the host and of NVIDIA's GPUs only",
    }

    untested: ClassVar[frozenset[str]] = frozenset(("tensor_parallel",))

    def float8(self) -> torch.dtype:
        # The properties of this device; another one in the machine may be newer.
        number = str(self._properties().gcnArchName).partition(":")[0].removeprefix("gfx")
        newer = number.startswith("12") or (number.startswith("95") and len(number) == 3)
        return torch.float8_e4m3fn if newer else torch.float8_e4m3fnuz

    def fits_torch(self) -> Support:
        if self._torch.version.hip is None:
            return Support.no(f"PyTorch {self._torch.__version__} was built without HIP")
        return Support.yes()

    def _fits_kernels(self) -> Support:
        found = str(self._properties().gcnArchName)  # such as gfx90a:sramecc+:xnack-
        if not self._targets or any(_runs_on(target, found) for target in self._targets):
            return Support.yes()
        return Support.no(
            f"{self._properties().name} is a {found}; the kernels are compiled for "
            f"{', '.join(self._targets)}"
        )


def _runs_on(target: str, found: str) -> bool:
    """Whether code for `target` runs on processor `found`; unspecified features may differ."""
    return set(target.split(":")) <= set(found.split(":"))
