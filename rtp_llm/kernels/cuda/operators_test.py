# SPDX-License-Identifier: Apache-2.0
"""The operator library of a GPU build has a kernel for every operator that all devices have."""

from __future__ import annotations

import torch

from rtp_llm import ops

# Whose kernels take NVIDIA's instructions.
_NVIDIA_ONLY = {"int8_linear", "w8a8_int8_linear"}


def test_every_operator_has_a_kernel() -> None:
    missing = set(ops.operators_without_kernel("cuda"))
    assert missing == (set() if torch.version.hip is None else _NVIDIA_ONLY)
