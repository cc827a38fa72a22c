# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch.profiler import ProfilerActivity

from rtp_llm.device.accelerator import AcceleratorDevice
from rtp_llm.device.base import Support
from rtp_llm.device.capabilities import Capabilities
from rtp_llm.device.cuda_ipc import CudaIpcMemory
from rtp_llm.device.numa import cores_of

# The kernels need bfloat16 arithmetic and asynchronous copies into shared memory.
LEAST_CAPABILITY = (8, 0)
# Products of 8-bit floats are written for the tensor cores of this one.
FP8_CAPABILITY = (9, 0)
# From this one on, there is an instruction to convert 8-bit floats.
_FLOAT8_CAPABILITY = (8, 9)
# IPC handles exist only for memory from cudaMalloc.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_NO_EXPORT = (("expandable_segments", "true"), ("backend", "cudamallocasync"))
# Set on machines of a vendor with a PyTorch that poses as CUDA.
_PPU_MARKER = "PPU_HOME"


class CudaDevice(AcceleratorDevice):
    """An NVIDIA GPU through torch.cuda."""

    name: ClassVar[str] = "cuda"
    torch_type: ClassVar[str] = "cuda"
    collectives: ClassVar[str] = "nccl"
    profiler_activity: ClassVar[ProfilerActivity] = ProfilerActivity.CUDA
    mask_variables: ClassVar[tuple[str, ...]] = ("CUDA_VISIBLE_DEVICES",)
    mask_end: ClassVar[str | None] = "-1"
    kernel_features: ClassVar[frozenset[str]] = frozenset(("mma", "triton", "one_pass_rotation"))
    max_head_dim: ClassVar[int | None] = 512  # a kernel keeps a head in registers
    refused: ClassVar[Mapping[str, str]] = {}

    def fits_torch(self) -> Support:
        if self._torch.version.cuda is None:
            return Support.no(f"PyTorch {self._torch.__version__} was built without CUDA")
        return Support.yes()

    def available(self) -> Support:
        if self.fits_torch() and _PPU_MARKER in self._environ:
            return Support.no(f"{_PPU_MARKER} is set: this is a PPU, which has no kernels")
        return super().available()

    def capabilities(self) -> Capabilities:
        return capabilities_of(self._capability())

    def _capability(self) -> tuple[int, int]:
        properties = self._properties()
        return properties.major, properties.minor

    def near_cores(self) -> frozenset[int]:
        at = self._properties()
        return cores_of(f"{at.pci_domain_id:04x}:{at.pci_bus_id:02x}:{at.pci_device_id:02x}.0")

    def ipc_memory(self, count: int, value: int) -> CudaIpcMemory:
        return CudaIpcMemory(self.torch_device, count, value)

    def supports(self, feature: str) -> Support:
        answer = super().supports(feature)
        if feature == "fp8_products" and self._capability() != FP8_CAPABILITY:
            found = ".".join(map(str, self._capability()))
            return Support.no(
                "the FP8 kernels need compute capability 9.0; "
                f"{self._properties().name} has {found}"
            )
        if feature == "memory_export" and (setting := _no_export(self._environ)):
            return Support.no(f"{setting} gives memory that other processes cannot open")
        return answer

    def _fits_kernels(self) -> Support:
        found = self._capability()
        name = f"{self._properties().name} has compute capability {found[0]}.{found[1]}"
        if found < LEAST_CAPABILITY:
            least = ".".join(map(str, LEAST_CAPABILITY))
            return Support.no(f"{name}, below the {least} that the kernels are compiled for")
        if self._targets and not runs_on(self._targets, found):
            return Support.no(f"{name}; the kernels are compiled for {', '.join(self._targets)}")
        return Support.yes()


def capabilities_of(capability: tuple[int, int]) -> Capabilities:
    """The capabilities of kernels on a GPU of the given compute capability."""
    features = set(CudaDevice.kernel_features)
    if capability >= _FLOAT8_CAPABILITY:
        features.add("float8_conversion")
    if capability == FP8_CAPABILITY:
        features.add("wgmma")
    return Capabilities(
        CudaDevice.name,
        CudaDevice.torch_type,
        frozenset(features),
        CudaDevice.max_head_dim,
        "sm_{}{}".format(*capability),
    )


def _no_export(environ: Mapping[str, str]) -> str:
    """The setting that keeps torch from allocating with cudaMalloc; empty if there is none."""
    for variable in _ALLOCATOR_VARIABLES:
        for setting in environ.get(variable, "").split(","):
            name, _, value = setting.replace(" ", "").partition(":")
            if (name, value.lower()) in _NO_EXPORT:
                return f"{variable}={name}:{value}"
    return ""


def runs_on(targets: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code for `targets` (sm_80, sm_90a) runs on a GPU of `capability`.

    A plain target runs on its major version from its minor version up; the last plain one, also
    kept as PTX, runs on everything newer. A target with a letter runs on that capability only.
    """
    plain = [_capability(target) for target in targets if target[-1].isdigit()]
    exact = [_capability(target[:-1]) for target in targets if not target[-1].isdigit()]
    native = any(major == capability[0] and minor <= capability[1] for major, minor in plain)
    return native or capability in exact or (bool(plain) and capability >= plain[-1])


def _capability(target: str) -> tuple[int, int]:
    number = int(target.removeprefix("sm_"))
    return number // 10, number % 10
