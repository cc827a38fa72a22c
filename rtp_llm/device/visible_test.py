# SPDX-License-Identifier: Apache-2.0
"""Tests of the lists of visible devices."""

from __future__ import annotations

import pytest

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice
from rtp_llm.testing.fake_torch import FakeTorch

KINDS = {
    CudaDevice: ("cuda", "CUDA_VISIBLE_DEVICES"),
    RocmDevice: ("rocm", "HIP_VISIBLE_DEVICES"),
    XpuDevice: ("xpu", "ZE_AFFINITY_MASK"),
}
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, ("0", "1", "2")),
        ("", ("0", "1", "2")),
        (" ", ("0", "1", "2")),
        (",", ("0", "1", "2")),
        ("0, 1,", ("0", "1")),
        ("2,0", ("2", "0")),
        ("0.0,0.1", ("0.0", "0.1")),
        (f"{UUID} , 1", (UUID, "1")),
    ],
)
def test_entries_keep_their_order_and_spelling(kind, mask, expected):
    name, variable = KINDS[kind]
    device = kind(FakeTorch(**{name: 3}), {} if mask is None else {variable: mask})
    assert device.visible_devices().variable == variable
    assert device.visible_devices().entries == expected


def test_a_process_index_is_the_position_and_children_get_the_entry_itself():
    visible = XpuDevice(FakeTorch(xpu=2), {"ZE_AFFINITY_MASK": "0.0, 0.1"}).visible_devices()
    assert visible.environment(1) == {"ZE_AFFINITY_MASK": "0.1"}
    assert visible.environment(1, 0) == {"ZE_AFFINITY_MASK": "0.1,0.0"}


def test_cuda_reads_its_mask_up_to_minus_one():
    device = CudaDevice(FakeTorch(cuda=1), {"CUDA_VISIBLE_DEVICES": "0,-1,1"})
    assert device.visible_devices().entries == ("0",)


@pytest.mark.parametrize(
    ("environ", "variable", "entries"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", ("1",)),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, "HIP_VISIBLE_DEVICES", ("2",)),
        ({"ROCR_VISIBLE_DEVICES": "4,6"}, "HIP_VISIBLE_DEVICES", ("0", "1")),
    ],
)
def test_rocm_reads_the_variables_that_hip_reads(environ, variable, entries):
    visible = RocmDevice(FakeTorch(rocm=2), environ).visible_devices()
    assert (visible.variable, visible.entries) == (variable, entries)


def test_a_mask_of_another_vendor_does_not_count():
    device = XpuDevice(FakeTorch(xpu=2), {"CUDA_VISIBLE_DEVICES": "1"})
    assert device.visible_devices().entries == ("0", "1")


def test_the_cpu_has_no_mask():
    assert CpuDevice().visible_devices().entries == ()
    assert CpuDevice().visible_devices().environment() == {}
