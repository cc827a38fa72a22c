"""What tests of operators share: instruction sets, tolerances, and proof that a kernel ran."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from rtp_llm import ops

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Relative to the largest value of the expected tensor: a few units in the last place.
_TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def _has(isa: str) -> bool:
    try:
        with ops.forced_cpu_isa(isa):
            return True
    except RuntimeError:
        return False


ISAS = tuple(isa for isa in ("scalar", "avx2", "avx512_base", "avx512") if _has(isa))


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
