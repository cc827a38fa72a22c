# SPDX-License-Identifier: Apache-2.0
"""Which network collectives are told to use."""

from __future__ import annotations

from rtp_llm.engine.ranks.interfaces import interface_of, interface_variables


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("127.0.0.53") == "lo"  # no interface has it, and it is this machine's
    assert interface_of("203.0.113.1") == interface_of("2001:db8::1") == ""


def test_what_the_user_says_stands() -> None:
    both = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert interface_variables({}, "127.0.0.1") == both
    said = {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": ""}
    assert interface_variables(said, "127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo"}
    assert interface_variables({}, "203.0.113.1") == {}
