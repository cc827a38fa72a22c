"""Loads the operator library and binds each operator to what runs it.

The dispatcher picks a native kernel by the device of the tensors. Where a device has none, a call
is an error that says so, unless references were allowed: then the plain PyTorch reference runs,
which the log tells once per operator.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from rtp_llm import native
from rtp_llm.ops.schema import OPERATORS, OperatorEntry, schema_hash

_NAMESPACE = "rtp_llm"
_DEVICE_KEYS = ("CPU", "CUDA", "XPU")
_log = logging.getLogger(__name__)


class MissingKernelError(NotImplementedError):
    """No native kernel for the device, and references were not allowed."""


class Operator:
    """A callable operator; `call` is torch's own once the library is loaded, without a detour."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call: Callable[..., Any] = self._load_and_call

    def _load_and_call(self, *args: Any, **kwargs: Any) -> Any:
        load()
        self.call = getattr(getattr(torch.ops, _NAMESPACE), self.name).default
        return self.call(*args, **kwargs)


@cache
def operator(name: str) -> Operator:
    """The operator `name` of the table; one object per name. Loads nothing."""
    if name not in OPERATORS:
        raise KeyError(f"no operator {name!r}; known: {', '.join(OPERATORS)}")
    return Operator(name)


@cache
def load() -> str:
    """Load the operator library once; returns its path. Raises native.NativeLibraryError."""
    path = str(native.ops_library_path())
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    theirs = _native("schema_hash")()
    if theirs != schema_hash():
        raise native.NativeLibraryError(
            f"{path} was built from other operator schemas (hash {theirs}) than this package "
            f"({schema_hash()}); build and install both from one source tree"
        )
    cpu_isa()
    for entry in OPERATORS.values():
        torch.library.register_fake(f"{_NAMESPACE}::{entry.name}", _lazy(entry.meta))
    _Fallbacks.install(allowed=_Fallbacks.allowed)
    return path


def allow_reference_ops(allowed: bool) -> None:
    """Whether plain PyTorch stands in where a device has no native kernel; logged once each."""
    _Fallbacks.allowed = allowed
    if load.cache_info().currsize:
        _Fallbacks.install(allowed=allowed)


def kernel_calls(name: str) -> int:
    """How often the native kernel of `name` ran in this process; -1 when there is none."""
    load()
    return int(_native("kernel_calls")(name))


def cpu_isa() -> str:
    """The instruction set of the CPU kernels: scalar, avx2, avx512_base or avx512."""
    load_once = _native("cpu_isa")
    return str(load_once(""))


@contextlib.contextmanager
def forced_cpu_isa(name: str) -> Iterator[None]:
    """Run CPU kernels with that instruction set; RuntimeError when the machine lacks it."""
    load()
    before = cpu_isa()
    _native("cpu_isa")(name)
    try:
        yield
    finally:
        _native("cpu_isa")(before)


def _native(name: str) -> Callable[..., Any]:
    overload: Callable[..., Any] = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return overload


def _lazy(target: str) -> Callable[..., Any]:
    """The function "module:name", imported when it is first called."""
    module, _, name = target.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


class _Fallbacks:
    """What the dispatcher finds where a device has no native kernel."""

    allowed = False
    _library: torch.library.Library | None = None

    @classmethod
    def install(cls, *, allowed: bool) -> None:
        if cls._library is not None:
            cls._library._destroy()  # type: ignore[no-untyped-call]
        cls._library = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
        make = cls._reference if allowed else cls._refusal
        for entry in OPERATORS.values():
            for key in _DEVICE_KEYS:
                qualified = f"{_NAMESPACE}::{entry.name}"
                if not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key):
                    cls._library.impl(entry.name, make(entry, key), key)  # type: ignore[no-untyped-call]

    @staticmethod
    def _refusal(entry: OperatorEntry, key: str) -> Callable[..., Any]:
        def refuse(*_args: Any, **_kwargs: Any) -> Any:
            raise MissingKernelError(
                f"operator {entry.name} has no kernel for {key} in {load()}. Install the wheel of "
                "that device, or allow the slow PyTorch reference with --allow-reference-ops."
            )

        return refuse

    @staticmethod
    def _reference(entry: OperatorEntry, key: str) -> Callable[..., Any]:
        reference = _lazy(entry.reference)
        told = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal told
            if not told:
                told = True
                _log.warning(
                    "operator %s has no kernel for %s: the PyTorch reference runs", entry.name, key
                )
            return reference(*args, **kwargs)

        return run
