# SPDX-License-Identifier: Apache-2.0
"""Tests of what begins before torch is there, with a driver that is made up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rtp_llm.device.early import start_driver


class Driver:
    """Notes its calls; `cuInit` answers with `code`."""

    def __init__(self, code=0):
        self.calls, self._code = [], code

    def cuInit(self, flags):
        self.calls.append("init")
        return self._code

    def cuDeviceGet(self, device, index):
        self.calls.append(f"device {index}")
        device._obj.value = 40 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.calls.append(f"context of {device.value}")
        return 0


def calls_for(requested, built, environ=None, driver=None):
    driver = driver or Driver()
    thread = start_driver(requested, environ or {}, lambda known: built, lambda name: driver)
    if thread is not None:
        thread.join()
    return driver.calls


@pytest.mark.parametrize(
    ("requested", "built", "starts"),
    [
        ("cuda", ("cpu",), True),
        (" CUDA ", ("cuda", "cpu"), True),
        ("auto", ("cuda", "cpu"), True),
        ("auto", ("cpu",), False),
        ("auto", ("rocm", "cpu"), False),
        ("cpu", ("cuda", "cpu"), False),
    ],
)
def test_the_driver_starts_where_cuda_will_be_used(requested, built, starts):
    expected = ["init", "device 0", "context of 40"] if starts else []
    assert calls_for(requested, built) == expected


def test_the_rank_chooses_the_device():
    calls = calls_for("cuda", ("cuda",), {"LOCAL_RANK": "2"})
    assert calls == ["init", "device 2", "context of 42"]


def test_what_fails_is_left_to_torch():
    assert calls_for("cuda", ("cuda",), driver=Driver(code=100)) == ["init"]
    assert calls_for("cuda", ("cuda",), {"LOCAL_RANK": "x"}) == []

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    thread = start_driver("cuda", {}, lambda known: ("cuda",), missing)
    thread.join()


def test_it_needs_no_torch():
    program = "import rtp_llm.device.early, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
