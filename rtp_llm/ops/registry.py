# SPDX-License-Identifier: Apache-2.0
"""Loads the operator library and binds each operator to what runs it.

The dispatcher picks a native kernel by the device of the tensors. Where a device has none, a call
is an error that says so, unless references were allowed: then the plain PyTorch reference runs,
which the log tells once per operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from rtp_llm import native
from rtp_llm.ops.fallback import Fallbacks, MissingKernelError, lazy
from rtp_llm.ops.schema import OPERATORS, schema_hash
from rtp_llm.ops.triton import TritonOperators

__all__ = [
    "MissingKernelError",
    "Operator",
    "allow_reference_ops",
    "cpu_isa",
    "forced_cpu_isa",
    "has_kernel",
    "kernel_calls",
    "load",
    "operator",
    "operators_without_kernel",
    "references_allowed",
]

_NAMESPACE = "rtp_llm"


class _State:
    library = ""  # path of the loaded library
    allow_references = False
    triton = TritonOperators(_NAMESPACE, OPERATORS.values())
    fallbacks = Fallbacks(_NAMESPACE, OPERATORS.values())

    @classmethod
    def fill_gaps(cls) -> None:
        cls.fallbacks.install(allow_references=cls.allow_references, native_library=cls.library)


class Operator:
    """A callable operator; `call` is torch's own once the library is loaded, without a detour.

    That of a kernel in Triton goes by the dispatcher only where something is traced.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.call: Callable[..., Any] = self._load_and_call

    def _load_and_call(self, *args: Any, **kwargs: Any) -> Any:
        load()
        self.call = _State.triton.direct(self.name, _native(self.name))
        return self.call(*args, **kwargs)


@cache
def operator(name: str) -> Operator:
    """The operator `name` of the table; one object per name. Loads nothing."""
    if name not in OPERATORS:
        raise KeyError(f"no operator {name!r}; known: {', '.join(OPERATORS)}")
    return Operator(name)


def load() -> str:
    """Load the operator library once; returns its path. Raises native.NativeLibraryError."""
    if _State.library:
        return _State.library
    path = str(native.ops_library_path())
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise native.NativeLibraryError(
            f"{path} cannot be loaded with torch {torch.__version__}: {error}"
        ) from error
    _check_schemas(path)
    cpu_isa = _native("cpu_isa")
    cpu_isa("")  # a wrong RTP_LLM_CPU_ISA fails here, not in the first request
    _State.triton.define()
    for entry in OPERATORS.values():
        torch.library.register_fake(f"{_NAMESPACE}::{entry.name}", lazy(entry.meta))
    _State.library = path
    _State.fill_gaps()
    return path


def allow_reference_ops(allowed: bool) -> None:
    """Whether plain PyTorch stands in where a device has no native kernel; logged once each."""
    _State.allow_references = allowed
    if _State.library:
        _State.fill_gaps()


def references_allowed() -> bool:
    """Whether references may run where a kernel is missing: see allow_reference_ops."""
    return _State.allow_references


def operators_without_kernel(torch_type: str) -> list[str]:
    """Names of operators without a kernel for a device type: their reference runs, or they fail.

    Excludes operators that a device may lack.
    """
    load()
    return _State.fallbacks.missing(torch_type.upper())


def has_kernel(name: str, torch_type: str) -> bool:
    """Whether operator `name` has a native kernel for tensors of one of torch's device types."""
    load()
    return _State.fallbacks.has_kernel(name, torch_type.upper())


def kernel_calls(name: str) -> int:
    """How often the native kernel of `name` ran in this process; -1 if there is none."""
    load()
    return int(_native("kernel_calls")(name))


def cpu_isa() -> str:
    """The instruction set of the CPU kernels: scalar, avx2, avx512_base or avx512."""
    load()
    return str(_native("cpu_isa")(""))


@contextlib.contextmanager
def forced_cpu_isa(name: str) -> Iterator[None]:
    """Run CPU kernels with that instruction set; RuntimeError when the machine lacks it."""
    before = cpu_isa()
    _native("cpu_isa")(name)
    try:
        yield
    finally:
        _native("cpu_isa")(before)


def _native(name: str) -> Callable[..., Any]:
    overload: Callable[..., Any] = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return overload


def _check_schemas(path: str) -> None:
    try:
        theirs = _native("schema_hash")()
    except AttributeError as error:
        raise native.NativeLibraryError(f"{path} is not an operator library of RTP-LLM") from error
    if theirs != schema_hash():
        raise native.NativeLibraryError(
            f"{path} was built from other operator schemas (hash {theirs}) than this package "
            f"({schema_hash()}); build and install both from one source tree"
        )
