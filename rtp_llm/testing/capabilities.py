# SPDX-License-Identifier: Apache-2.0
"""Capabilities of devices that the test machine need not have."""

from __future__ import annotations

from rtp_llm.device.capabilities import Capabilities
from rtp_llm.device.cuda import capabilities_of
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice

AMPERE, ADA, HOPPER, BLACKWELL = map(capabilities_of, ((8, 0), (8, 9), (9, 0), (10, 0)))
ROCM = Capabilities("rocm", "cuda", RocmDevice.kernel_features, RocmDevice.max_head_dim)
XPU = Capabilities("xpu", "xpu", XpuDevice.kernel_features, XpuDevice.max_head_dim)
