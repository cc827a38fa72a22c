# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: the operators of CPU tensors are the SYCL kernels of the bridge.

Loading the bridge opens the SYCL device: without one nothing can be tested, and that is a failure.
"""

from __future__ import annotations

import os

import pytest
import torch

from rtp_llm import native, ops

# Bazel gives a relative path, and processes that tests start may be elsewhere.
os.environ[native.OPS_VARIABLE] = os.path.abspath(os.environ[native.OPS_VARIABLE])
ops.load()  # before the first tensor: tensors made from here on are in USM

from rtp_llm.testing import operator_checks  # noqa: E402

bridge = torch.ops.rtp_llm_xpu_bridge

if not bridge.has_float16():
    operator_checks.FLOAT_DTYPES = operator_checks.FLOAT_DTYPES[:2]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every run says which device it ran on."""
    terminalreporter.write_line(f"SYCL device: {bridge.device_name()}")
