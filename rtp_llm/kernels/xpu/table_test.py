# SPDX-License-Identifier: Apache-2.0
"""Which operators have a SYCL kernel, and which of the others an engine there may meet."""

from __future__ import annotations

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.engine.start.start_checks import missing_operators
from rtp_llm.ops.schema import OPERATORS
from rtp_llm.testing.capabilities import XPU_KERNELS
from rtp_llm.testing.operator_checks import TORCH_TYPE


def test_the_table_has_every_kernel() -> None:
    assert {name for name in OPERATORS if ops.has_kernel(name, TORCH_TYPE)} == XPU_KERNELS


def test_an_engine_finds_every_operator_that_a_device_must_have() -> None:
    assert missing_operators(resolve_device()) == []


def test_no_reference_runs_in_place_of_a_kernel_without_a_word() -> None:
    assert not resolve_device().supports("fp8_products")
    composite = {name: entry.module for name, entry in OPERATORS.items() if entry.composite}
    assert {name for name, module in composite.items() if module[:4] != "fp8."} <= XPU_KERNELS
