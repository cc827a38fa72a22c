# SPDX-License-Identifier: Apache-2.0
"""The CPU as a device."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import ProfilerActivity

from rtp_llm.device.base import Device, DeviceError, Download, MemoryInfo, Support
from rtp_llm.device.capabilities import HOST
from rtp_llm.device.ranks import Ranks
from rtp_llm.device.streams import Event, Graph, HostEvent, HostStream, Stream
from rtp_llm.device.visible import VisibleDevices

# A step's share of a long prompt. Decoding streams wait while it runs, and larger chunks gain
# little: a 0.6B model processes 90, 92, 93 and 94 prompt tokens/s per core in chunks of 64, 128,
# 256 and 512.
_BATCH_TOKENS = 256


class _Here:
    """A download where host memory is the device's memory."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self._tensors = tensors

    def read(self) -> list[NDArray[Any]]:
        return [tensor.numpy() for tensor in self._tensors]


class CpuDevice(Device):
    """The processors and the memory that this process may use, cgroup limits included."""

    name: ClassVar[str] = "cpu"
    collectives: ClassVar[str] = "gloo"
    asynchronous: ClassVar[bool] = False
    profiler_activity: ClassVar[ProfilerActivity] = ProfilerActivity.CPU
    shares_memory: ClassVar[bool] = True
    kernel_features: ClassVar[frozenset[str]] = HOST.features
    refused: ClassVar[Mapping[str, str]] = {
        "quantized_kv_cache": "the kernels keep the KV cache in the type of the activations",
        "fp8_products": "there are no kernels for FP8 products",
        "graph_capture": "a CPU step has no launch queue to capture; it runs eagerly",
        "pinned_memory": "host memory is the device's memory; nothing is copied",
    }

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is the directory that contains /proc and /sys (tests pass their own)."""
        self.torch_device = torch.device("cpu")
        self._root = root
        self._stream = HostStream()

    def available(self) -> Support:
        return Support.yes()

    def description(self) -> str:
        return f"CPU ({self._processor()}, {self.default_threads()} cores, {_isa()})"

    def default_threads(self) -> int:
        """Number of cores this process may use, limited by its cgroups' CPU quotas."""
        cores = len(os.sched_getaffinity(0))
        return max(1, min([cores, *self._cpu_quotas()]))

    def default_batch_tokens(self) -> int:
        return _BATCH_TOKENS

    def memory_info(self) -> MemoryInfo:
        """MemAvailable and MemTotal, or the control group's limit where that is smaller."""
        system = self._numbers("proc/meminfo")
        free, total = 1024 * system["MemAvailable"], 1024 * system["MemTotal"]
        limit = self._cgroup("memory.max", "memory/memory.limit_in_bytes")
        if limit is not None and limit < total:
            used = self._cgroup("memory.current", "memory/memory.usage_in_bytes") or 0
            total, free = limit, min(free, limit - used + self._reclaimable())
        return MemoryInfo(free=max(0, free), total=total)

    def await_free_memory(self, wanted: int, seconds: float) -> int:
        return 0

    def memory_used(self) -> int:
        """Resident bytes of this process."""
        pages = (self._root / "proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_memory(self) -> int:
        """The most resident bytes, as the kernel counts them."""
        return 1024 * self._numbers("proc/self/status").get("VmHWM", 0)

    def reset_peak_memory(self) -> None:
        with suppress(OSError):  # not every container may
            (self._root / "proc/self/clear_refs").write_text("5")

    # -- one device without a queue: most of it has nothing to do -------------------------------

    def device_count(self) -> int:
        return 1

    def visible_devices(self) -> VisibleDevices:
        return VisibleDevices()

    def check_group(self, ranks: Ranks) -> None:
        pass

    def make_current(self) -> None:
        pass

    def current_index(self) -> int:
        return 0

    def empty_cache(self) -> None:
        pass

    def pinned_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def upload(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array)

    def upload_all(self, *arrays: NDArray[Any]) -> list[Tensor]:
        return [torch.from_numpy(array) for array in arrays]

    def start_download(self, *tensors: Tensor) -> Download:
        return _Here(tensors)

    def synchronize(self) -> None:
        pass

    def new_stream(self) -> Stream:
        return HostStream()

    def current_stream(self) -> Stream:
        return self._stream

    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        return nullcontext()

    def new_event(self, timed: bool = False) -> Event:
        return HostEvent()

    def new_graph(self, pool: object = None) -> Graph:
        raise DeviceError(f"cpu captures no graphs: {self.refused['graph_capture']}")

    # -- stats of the machine ------------------------------------------------------------------

    def _processor(self) -> str:
        for line in self._lines("proc/cpuinfo"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return "unknown model"

    def _reclaimable(self) -> int:
        """Reclaimable page cache that is charged to the cgroup."""
        for place in ("sys/fs/cgroup/memory.stat", "sys/fs/cgroup/memory/memory.stat"):
            if (self._root / place).exists():
                return self._numbers(place).get("inactive_file", 0)
        return 0

    def _cpu_quotas(self) -> Iterator[int]:
        """Cores that each cgroup of this process allows, rounded up: its own and its ancestors.

        In a container the cgroup is often the visible root; a systemd service sees its path below
        the root.
        """
        for line in ["0::/", "0:cpu:/", *self._lines("proc/self/cgroup")]:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                roots, files = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], ["cpu.max"]
            elif "cpu" in controllers.split(","):
                roots = ["sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"]
                files = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
            else:
                continue
            group = PurePosixPath(path)
            for root, above in itertools.product(roots, (group, *group.parents)):
                folder = f"{root}/{above.relative_to('/')}"
                words = " ".join(" ".join(self._lines(f"{folder}/{f}")) for f in files).split()
                if len(words) == 2 and all(word.isdigit() for word in words):
                    yield -(-int(words[0]) // max(1, int(words[1])))

    def _cgroup(self, v2: str, v1: str) -> int | None:
        """One number of the control group, version 2 or 1; None where there is no limit."""
        for place in (v2, v1):
            text = " ".join(self._lines(f"sys/fs/cgroup/{place}")).strip()
            if text.isdigit():
                return int(text)
        return None

    def _numbers(self, place: str) -> dict[str, int]:
        """`name: number` lines as a dictionary."""
        pairs = (line.replace(":", " ").split() for line in self._lines(place))
        return {words[0]: int(words[1]) for words in pairs if len(words) > 1 and words[1].isdigit()}

    def _lines(self, place: str) -> list[str]:
        try:
            return (self._root / place).read_text().splitlines()
        except OSError:
            return []


def _isa() -> str:
    capability: Callable[[], str] = torch.backends.cpu.get_cpu_capability
    return capability()
