# SPDX-License-Identifier: Apache-2.0
"""What tests of operators share: devices, instruction sets, tolerances, proof that a kernel ran.

Tests make their tensors on torch's default device. It is the CPU, unless a pytest plugin chose
another one (rtp_llm/testing/gpu.py). RTP_LLM_TESTED_DEVICE says whose kernels work
on them when they are not that device's (rtp_llm/kernels/xpu/bridge).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rtp_llm import ops

# torch's type of the tests' tensors, and the device whose kernels work on them.
TORCH_TYPE = torch.get_default_device().type
DEVICE = os.environ.get("RTP_LLM_TESTED_DEVICE") or TORCH_TYPE

FLOAT_DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)

# What only a device whose index tensors the host may read can refuse, and what else the CPU alone
# promises.
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="promised on the CPU alone")

# Relative to the largest value of the expected tensor: a few units in the last place.
_TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def _has(isa: str) -> bool:
    try:
        with ops.forced_cpu_isa(isa):
            return True
    except RuntimeError:
        return False


def _variants() -> tuple[str, ...]:
    if DEVICE != "cpu":
        return (DEVICE,)
    return tuple(isa for isa in ("scalar", "avx2", "avx512_base", "avx512") if _has(isa))


# The kernels of the device, one after another.
ISAS = _variants()


def running(isa: str) -> contextlib.AbstractContextManager[None]:
    """Kernels of that instruction set; a GPU has but one."""
    return ops.forced_cpu_isa(isa) if DEVICE == "cpu" else contextlib.nullcontext()


@contextlib.contextmanager
def kernel_runs(name: str, times: int = 1) -> Iterator[None]:
    """Fails unless the native kernel of operator `name` runs that often inside."""
    before = ops.kernel_calls(name)
    yield
    ran = ops.kernel_calls(name) - before
    assert before >= 0, f"{name} has no native kernel"
    assert ran == times, f"the native kernel of {name} ran {ran} times, expected {times}"


def assert_near(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Equal shape and dtype, and values within the dtype's tolerance, absolute and relative."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    limit = _TOLERANCES[actual.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)
