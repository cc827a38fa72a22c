"""The interface of a device, and the answer type of everything that may be refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Support:
    """Yes, or no with the reason; true in a condition when yes."""

    supported: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.supported

    @classmethod
    def yes(cls) -> Support:
        return cls(True)

    @classmethod
    def no(cls, reason: str) -> Support:
        return cls(False, reason)


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes that this process may still take, and bytes that the device has for it in all."""

    free: int
    total: int


class Device(ABC):
    """One device type as the core sees it: it asks for capabilities, never for the name.

    A new device is a subclass in its own file and one row of the table in resolve.py.
    """

    name: str
    torch_device: torch.device

    @abstractmethod
    def available(self) -> Support:
        """Whether this machine can run it now, or what is missing."""

    @abstractmethod
    def description(self) -> str:
        """One line for the log: model, cores or multiprocessors, instruction sets."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Memory where weights and KV cache live, as limited for this process."""

    @abstractmethod
    def memory_used(self) -> int:
        """Bytes of that memory that this process holds now."""

    @abstractmethod
    def supports(self, feature: str) -> Support:
        """Whether `feature` (a key of CAPABILITIES) works here; ValueError for an unknown one."""

    def default_threads(self) -> int:
        """Host threads that kernels should use when the user set nothing."""
        return 1


CAPABILITIES: dict[str, str] = {
    "float32": "weights, activations and KV cache in float32",
    "bfloat16": "weights, activations and KV cache in bfloat16",
    "float16": "weights, activations and KV cache in float16",
    "int8_weights": "int8 weight-only quantisation while loading",
    "quantized_kv_cache": "a KV cache in 8 bits",
    "graph_capture": "recording a step and replaying it",
    "pinned_memory": "page-locked host buffers for asynchronous copies",
    "tensor_parallel": "one model over several devices",
}
