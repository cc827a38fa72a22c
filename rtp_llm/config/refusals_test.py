# SPDX-License-Identifier: Apache-2.0
"""The table of refusals says what the devices themselves say."""

from __future__ import annotations

import pytest

from rtp_llm.config.refusals import REFUSALS, find_refusal
from rtp_llm.device import CAPABILITIES, DeviceError
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.resolve import Resolver
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.testing.fake_torch import FakeTorch

DEVICES = {kind.name: kind for kind in (CpuDevice, CudaDevice, RocmDevice, XpuDevice)}
ROWS = [row for row in REFUSALS if row.area == "device"]


@pytest.mark.parametrize("name", DEVICES)
def test_what_a_device_refuses_is_in_the_table_with_its_reason(name: str) -> None:
    refused = DEVICES[name].refused
    assert refused or name == "cuda"
    for feature, reason in refused.items():
        row = find_refusal("device", feature, name)
        assert row is not None, feature
        assert row.reason.lower().rstrip(".") == reason.lower()


def test_what_the_table_says_of_capabilities_is_true() -> None:
    for row in ROWS:
        if row.name in CAPABILITIES:
            assert all(row.name in DEVICES[name].refused for name in row.device_names), row


def test_the_other_rows_of_devices_are_those_that_are_tested() -> None:
    others = {row.name for row in ROWS} - set(CAPABILITIES)
    # Tested below, in device/accelerator_test.py, engine/start_checks_test.py and
    # attention/mla_test.py.
    assert others == {
        "device_type",
        "compute capability below 8.0",
        "GPU without compiled kernels",
        "collectives",
        "fp8_products on another GPU",
        "int4_weights in float32",
        "memory_export from another allocator",
        "operator without a kernel",
        "--reserve-runtime-mem-mb",
        "multi-head latent attention",
    }


def test_devices_without_a_wheel_are_refused() -> None:
    (row,) = [row for row in ROWS if row.name == "device_type"]
    for name in row.device_names:
        with pytest.raises(DeviceError, match=rf"device_type={name} .* has no kernels and no whee"):
            Resolver(FakeTorch(), {}, lambda: ("cpu",)).resolve(name)
