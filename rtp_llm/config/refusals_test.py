"""The table of refusals says what the devices themselves say."""

from __future__ import annotations

import pytest

from rtp_llm.config.refusals import REFUSALS, find_refusal
from rtp_llm.device import resolve_device
from rtp_llm.device.base import CAPABILITIES
from rtp_llm.device.resolve import DeviceError

ROWS = [row for row in REFUSALS if row.area == "device"]


def test_what_the_cpu_refuses_is_in_the_table_with_its_reason() -> None:
    cpu = resolve_device("cpu")
    refused = {name: cpu.supports(name) for name in CAPABILITIES if not cpu.supports(name)}
    assert refused
    for name, support in refused.items():
        row = find_refusal("device", name)
        assert row is not None and row.devices == "cpu", name
        assert row.reason.lower().rstrip(".") == str(support.reason).lower()


def test_what_the_table_says_of_devices_is_true() -> None:
    cpu = resolve_device("cpu")
    for row in ROWS:
        if row.devices == "cpu":
            assert not cpu.supports(row.name)
            continue
        for name in row.devices.split(", "):
            with pytest.raises(DeviceError, match=name):
                resolve_device(name)
